"""The vectors of ten kinds of encoders, to show that a change of the code changes none of them.

    # this code and that of a commit: the same vectors of the same folders, within 1e-6 of their length
    python -m tests.goldens --against main
    python -m tests.goldens --against HEAD~3 static words

Documents are embedded by `docsplit.embed`, whose name outlasts what is behind it, in float32: in full, cut, in pieces
and after a prompt. Queries are embedded by `load_encoder`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.trajectories import DATA, DOCUMENTS, ENCODER, ROOT, checkout

TOLERANCE = 1e-6
HOW: tuple[dict[str, Any], ...] = ({}, {"prompt": "a storm: "}, {"prompt": ""}, {"long_documents": "chunk_mean"})
EMBED = """
import json, sys
import numpy as np, torch
torch.cpu.get_capabilities = lambda: {}  # or products would be bfloat16 where the processor has it
from docsplit import embed, load_encoder
encoder, texts, output, ways = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3], json.loads(sys.argv[4])
vectors = [embed(encoder, texts, **how) for how in ways]
queries = load_encoder(encoder, device="cpu").encode_query(texts[:8])
np.savez(output, *vectors, queries)
"""
SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    **{"max_position_embeddings": 80, "num_key_value_heads": 1, "head_dim": 16, "local_attention": 8},
}


def of_transformers(kind: str, folder: Path, padding_side: str = "right", **sizes: Any) -> None:
    """Write a random encoder of transformers as `AutoModel` saves it."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DATA / "tokenizer", padding_side=padding_side)
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES | {"vocab_size": len(tokenizer), "pad_token_id": 0} | sizes)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def of_docsplit(model_type: str, folder: Path, **sizes: Any) -> None:
    """Write a random encoder as this project releases it."""
    import torch
    from transformers import AutoConfig, AutoTokenizer

    from docsplit.modeling.families.table import FAMILIES
    from modeling_docsplit import DocSplitForContrastivePretraining

    tokenizer, family = AutoTokenizer.from_pretrained(DATA / "tokenizer"), FAMILIES[model_type]
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.built_on or model_type, **SIZES | {"vocab_size": len(tokenizer)} | sizes)
    if family.built_on:
        config = family.make_config(config, {})
    DocSplitForContrastivePretraining.from_config(config, tokenizer).save_pretrained(folder)


def static(folder: Path) -> None:
    """Write a table of token vectors with prompts."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(DATA / "tokenizer").backend_tokenizer
    modules, prompts = [StaticEmbedding(tokenizer, embedding_dim=16)], {"document": "ship: ", "query": "oven: "}
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder))


def router(folder: Path) -> None:
    """Write a route for documents and another for queries."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Router, Transformer

    routes = []
    for number, kind in enumerate(("bert", "distilbert")):
        of_transformers(kind, folder.with_name(f"route-{number}"), dim=32, n_layers=2, n_heads=2, hidden_dim=64)
        routes.append([Transformer(str(folder.with_name(f"route-{number}"))), Pooling(32, "mean")])
    modules = [Router.for_query_document(query_modules=routes[1], document_modules=routes[0]), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))


def adapted(start: str, folder: Path) -> None:
    """Write an encoder with words, or one of documents alone."""
    from docsplit import adapt

    adapt(start, str(DOCUMENTS), folder)


ENCODERS: dict[str, Callable[[Path], None]] = {
    "bert": lambda folder: of_transformers("bert", folder),
    "modernbert": lambda folder: of_transformers("modernbert", folder, cls_token_id=2, sep_token_id=3),
    "mpnet": lambda folder: of_transformers("mpnet", folder, pad_token_id=1),
    "longformer": lambda folder: of_docsplit("longformer", folder, attention_window=[8, 8]),
    "decoder": lambda folder: of_transformers("qwen3", folder, padding_side="left"),
    "static": static,
    "words": lambda folder: adapted(str(ENCODER), folder),
    "closed_form": lambda folder: adapted("none", folder),
    "router": router,
    "graph": lambda folder: of_docsplit("graph_document", folder),
}


def vectors_of(code: Path, encoder: Path, texts: Path, ways: str) -> list[np.ndarray]:
    """Embed with the code of a checkout, in a process of its own."""
    output = texts.with_name("vectors.npz")
    words = [sys.executable, "-c", EMBED, encoder, texts, output, ways]
    subprocess.run([*map(str, words)], cwd=code, check=True, stderr=subprocess.DEVNULL)
    with np.load(output) as file:
        return [file[name] for name in file.files]


def main() -> None:
    """Compare with a commit, and print a line an encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", required=True, help="compare with the code of this commit")
    parser.add_argument("encoders", nargs="*", metavar="encoder", help=f"default: all of {', '.join(ENCODERS)}")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.encoders if name not in ENCODERS]:
        parser.error(f"no encoder is called {', '.join(unknown)}")
    texts = [json.loads(line)["text"] for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
    texts = [*texts[:40], " ".join(texts[:12]), "", "東京", "a"]
    are_equal = True
    with tempfile.TemporaryDirectory() as place, checkout(arguments.against, Path(place) / "code") as code:
        (texts_file := Path(place) / "texts.json").write_text(json.dumps(texts))
        for name in arguments.encoders or ENCODERS:
            ENCODERS[name](folder := Path(place) / name)
            ways = [
                how for how in HOW if "long_documents" not in how or name not in ("static", "closed_form", "router")
            ]
            ours, theirs = (vectors_of(root, folder, texts_file, json.dumps(ways)) for root in (ROOT, code))
            apart = max(
                np.linalg.norm(mine - other, axis=1).max() / np.linalg.norm(other, axis=1).max()
                for mine, other in zip(ours, theirs, strict=True)
            )
            are_equal = are_equal and apart <= TOLERANCE
            verdict = "equal" if apart <= TOLERANCE else "DIFFERENT"
            print(f"{name:12} {verdict}: {len(ours)} lists of vectors, at most {apart:.1e} apart", flush=True)
    sys.exit(not are_equal)


if __name__ == "__main__":
    main()
