"""Model folders that try to run code, or are damaged: tiny encoders, each with one change.

`folders` makes them one after the other, for tests and for a soak test. Whatever code a folder holds writes a file
`CANARY` into it when it runs.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, LongformerConfig

from docsplit.embedding.lexical_ridge import save_with_words
from docsplit.modeling.encoder_with_words import Words
from docsplit.modeling.loading import load_encoder
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig

CANARY = "CANARY"
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
CODE = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel", "AutoTokenizer": ["evil.Evil", "evil.Evil"]}
DEEP = 100_000  # brackets, one in the other

Change = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One hostile folder.

    Attributes:
        kind: of the tiny encoder (`build`).
        loads: whether it may load all the same, for what is wrong in it is not used.
    """

    name: str
    kind: str
    change: Change
    loads: bool = False


def build(kind: str, folder: Path, tokenizer: Any) -> None:
    """Write a tiny encoder: as `AutoModel` writes it, as this project does, or with modules of either."""
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    config = BertConfig(**sizes)
    if kind == "plain":
        BertModel(config).save_pretrained(folder)
    elif kind == "stock":
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(str(folder), model_kwargs={"add_pooling_layer": False})
        modules = [transformer, Pooling(16), Dense(16, 8), Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    elif kind == "words":
        build("ours", folder, tokenizer)
        model = load_encoder(str(folder), device="cpu")
        shutil.rmtree(folder)
        save_with_words(model, Words(tokenizer.backend_tokenizer, torch.arange(9), torch.ones(9, 16)), 1.0, folder)
    else:
        if kind == "longformer":
            config = LongformerConfig(**sizes | {"pad_token_id": tokenizer.pad_token_id, "attention_window": 8})
        elif kind == "graph":
            config = GraphDocumentConfig(config, graph_hidden_size=16, graph_layers=1)
        pooling = {} if kind == "graph" else {"pooling": "mean"}
        settings = {"max_seq_length": 32, "mlm_weight": 0.0}  # without a head the weights are one file
        DocSplitForContrastivePretraining.from_config(config, tokenizer, **pooling, **settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


KINDS = ("plain", "stock", "ours", "longformer", "graph", "words")


def folders(tokenizer: Any, scratch: Path, cases: list[Case] | None = None) -> Iterator[tuple[Case, Path]]:
    """Make each hostile folder of `cases` (default: all), one at a time; the encoders are built once."""
    for number, case in enumerate(cases or CASES):
        good = scratch / "good" / case.kind
        if not good.exists():
            build(case.kind, good, tokenizer)
        folder = scratch / f"{number:03} {case.kind}"
        shutil.copytree(good, folder)
        case.change(folder)
        yield case, folder
        shutil.rmtree(folder)


# --- Changes ---


def has_run(folder: Path) -> bool:
    """Whether code of a folder was run."""
    return (folder / CANARY).exists()


def evil(folder: Path) -> str:
    """Code that leaves a file in a folder."""
    return f"open({str(folder / CANARY)!r}, 'w').close()\n"


class _Pickled:
    """A pickle that leaves a file where it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def _values(file: str, **values: Any) -> Change:
    """Set values of a JSON file; None as a value stays in it as null."""

    def change(folder: Path) -> None:
        path = folder / file
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps(content | values), encoding="utf-8")

    return change


def _text(file: str, text: str | bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def _without(file: str) -> Change:
    return lambda folder: (folder / file).unlink()


def _cut(file: str, share: float) -> Change:
    return lambda folder: os.truncate(folder / file, int((folder / file).stat().st_size * share))


def _all(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def _with_code(*changes: Change) -> Change:
    """Give a folder code that nobody asked for, and make its files ask for it."""

    def bring(folder: Path) -> None:
        for name in ("evil.py", "sitecustomize.py", "modeling_evil.py"):
            (folder / name).write_text(evil(folder) + "EvilConfig = EvilModel = Evil = Module = object\n")

    return _all(bring, *changes)


def _replaced_code(folder: Path) -> None:
    """Let all code that a folder brings leave a file."""
    files = list(folder.glob("*.py"))
    assert files
    for file in files:
        file.write_text(evil(folder) + file.read_text())


def _pickle(weights: str = "model.safetensors", pickled: str = "pytorch_model.bin", protocol: int = 0) -> Change:
    """Put a pickle that runs code in the place of weights."""

    def change(folder: Path) -> None:
        values: dict[str, Any] = dict(load_file(folder / weights))
        values["embeddings.canary"] = _Pickled(folder / CANARY)
        (folder / weights).unlink()
        if protocol:
            (folder / pickled).write_bytes(pickle.dumps(values, protocol=protocol))
        else:
            torch.save(values, folder / pickled)

    return change


def _tensors(change_of: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file(change_of(dict(load_file(path))), path, metadata={"format": "pt"})

    return change


def _modules(*types: Any) -> Change:
    """Name other modules."""
    entries = [{"idx": n, "name": str(n), "path": "", "type": kind} for n, kind in enumerate(types)]
    return _text("modules.json", json.dumps(entries))


TRANSFORMER, POOLING = (
    "sentence_transformers.sentence_transformer.modules.Transformer",
    "sentence_transformers.sentence_transformer.modules.Pooling",
)
OPTIONS = "sentence_bert_config.json"
HEADER = (2**63 - 1).to_bytes(8, "little")


def _code() -> Iterator[Case]:
    """Code that a folder brings."""
    for kind in ("longformer", "graph", "words"):
        yield Case("its code was replaced", kind, _replaced_code, loads=True)
    for kind in ("plain", "stock", "ours"):
        yield Case("auto_map beside a known type", kind, _with_code(_values("config.json", auto_map=CODE)), loads=True)
        unknown = _values("config.json", auto_map=CODE, model_type="evil", architectures=["EvilModel"])
        yield Case("auto_map of an unknown type", kind, _with_code(unknown))
    foreign = _values("config.json", auto_map={"AutoConfig": "evil/code--evil.EvilConfig"}, model_type="evil")
    yield Case("auto_map to another repository", "plain", _with_code(foreign))
    tokenizer = _values("tokenizer_config.json", auto_map=CODE, tokenizer_class="EvilTokenizer")
    yield Case("auto_map of the tokenizer", "stock", _with_code(tokenizer), loads=True)
    processor = json.dumps({"auto_map": {"AutoProcessor": "evil.Evil"}, "processor_class": "Evil"})
    yield Case("auto_map of the processor", "stock", _with_code(_text("processor_config.json", processor)), loads=True)
    inner = _values("config.json", passage_encoder={"model_type": "evil", "auto_map": CODE})
    yield Case("auto_map of the passage encoder", "graph", _with_code(inner))
    for name in ("evil.Module", "os.system", "builtins.eval"):
        yield Case(f"module {name}", "stock", _with_code(_modules(TRANSFORMER, name)))
        yield Case(f"first module {name}", "ours", _with_code(_modules(name, POOLING)))
    for name in ("torch.load", "base.model.os", "util.misc.importlib"):
        yield Case(f"module sentence_transformers.{name}", "stock", _modules(f"sentence_transformers.{name}"))
    yield Case("code inside words", "words", _with_code(_text("words/config.json", '{"inner_type": "evil.Module"}')))
    for activation in ("evil.Module", "torch.os.system", 5):
        change = _with_code(_values("2_Dense/config.json", activation_function=activation))
        yield Case(f"the activation {activation}", "stock", change)


def _options_of_loading() -> Iterator[Case]:
    """Options that would let code run."""
    evil_type = _values("config.json", auto_map=CODE, model_type="evil")
    for key in ("model_kwargs", "config_args", "processor_kwargs", "tokenizer_args"):
        trusting = _values(OPTIONS, **{key: {"trust_remote_code": True}})
        yield Case(f"{key} trust code", "stock", _with_code(trusting, evil_type))
    trusting = _values(OPTIONS, model_kwargs={"weights_only": False})
    yield Case("pickles without weights_only", "stock", _all(_pickle(), trusting))
    for values in ({"attn_implementation": "evil/kernel@main:forward"}, {"allow_all_kernels": True}, [1]):
        yield Case(f"loading with {values}", "stock", _values(OPTIONS, model_kwargs=values))
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "evil/base", "megatron_core": "evil"}
    for content in (adapter, []):
        yield Case(f"an adapter {content}", "plain", _text("adapter_config.json", json.dumps(content)))


def _pickles() -> Iterator[Case]:
    """Pickles."""
    for kind in KINDS:
        yield Case("pickled weights", kind, _pickle())
    yield Case("a plain pickle", "plain", _pickle(protocol=4))
    yield Case("pickled Dense weights", "stock", _pickle("2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"))
    yield Case("weights that are a pickle", "plain", _pickle(pickled="model.safetensors", protocol=4))


def _sizes() -> Iterator[Case]:
    """Sizes that no memory has, and values that are no sizes."""
    for name, value in (
        *(("hidden_size", 10**9), ("num_hidden_layers", 10**9), ("vocab_size", 10**12), ("hidden_size", 10**6)),
        *(("hidden_size", 0), ("num_hidden_layers", -1), ("hidden_size", "wide"), ("vocab_size", 2.5)),
        *(("hidden_act", "evil"), ("model_type", None), ("model_type", ["bert"])),
    ):
        yield Case(f"{name} is {value!r}", "plain", _values("config.json", **{name: value}))
    yield Case("a window of 10^12", "longformer", _values("config.json", attention_window=[10**12]))
    inner = SIZES | {"hidden_size": 10**9}
    yield Case("a passage encoder of 10^9", "graph", _values("config.json", passage_encoder=inner))
    yield Case("a graph of 10^9", "graph", _values("config.json", graph_hidden_size=10**9))
    for name, value in (("dtype", "evil"), ("pad_token_id", "x"), ("quantization_config", 5), ("rope_scaling", "x")):
        yield Case(f"{name} is {value!r}", "plain", _values("config.json", **{name: value}), loads=True)


def _no_json() -> Iterator[Case]:
    """Files that are no JSON, or say something else."""
    no_utf8, nested = b'{"model_type": "\xff\xfe"}', "[" * DEEP + "]" * DEEP
    for kind, file, text in (
        *(("plain", "config.json", text) for text in ("", "[]", '{"a": ', no_utf8, nested)),
        *(("ours", file, '{"a": ') for file in ("modules.json", "tokenizer.json", "tokenizer_config.json")),
        *(("stock", file, "[]") for file in (OPTIONS, "1_Pooling/config.json", "config_sentence_transformers.json")),
        *(("ours", "tokenizer.json", nested), ("stock", OPTIONS, no_utf8), ("words", "words/config.json", "")),
    ):
        yield Case(f"{file} is {text[:8]!r}", kind, _text(file, text))
    for entries in (
        [5],
        [{"type": 5, "path": ""}],
        [{"type": TRANSFORMER, "path": "../../..", "name": "0", "idx": 0}],
    ):
        yield Case(f"modules {entries}", "stock", _text("modules.json", json.dumps(entries)))
    for file, name, value in (
        *((OPTIONS, "max_seq_length", value) for value in ("x", -3, 0)),
        *(("config_sentence_transformers.json", "prompts", value) for value in (5, {"document": 5})),
        *(
            ("config_sentence_transformers.json", name, "none")
            for name in ("default_prompt_name", "similarity_fn_name")
        ),
    ):
        yield Case(f"{name} is {value!r}", "stock", _values(file, **{name: value}))
    change = _all(_without("modules.json"), _settings("objective", "evil"))
    yield Case("settings: objective is 'evil'", "ours", change, loads=True)  # which a training reads alone
    yield Case("settings are a list", "ours", _all(_without("modules.json"), _values("config.json", docsplit=[1])))
    yield Case("two poolings and no width", "stock", _text("1_Pooling/config.json", "{}"))
    for name, value in (("model_max_length", "x"), ("added_tokens_decoder", 5), ("padding_side", "up")):
        changed = _values("tokenizer_config.json", **{name: value})
        yield Case(f"tokenizer: {name} is {value!r}", "ours", changed, loads=True)
    yield Case("tokenizer.json: model is 5", "ours", _values("tokenizer.json", model=5))
    rules = {"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
    beyond = rules | {"vocab": {"a": 2**32 - 1, "[UNK]": 0}, "unk_token": "[UNK]"}
    yield Case("ids beyond all", "ours", _values("tokenizer.json", model=beyond))


def _weights() -> Iterator[Case]:
    """Weights that are cut, of other shapes, or elsewhere."""
    for kind, file, share in (
        *(("plain", "model.safetensors", 0), ("ours", "model.safetensors", 0.99), ("ours", "tokenizer.json", 0.5)),
        *(("stock", "2_Dense/model.safetensors", 0.5), ("words", "words/words.safetensors", 0.5)),
    ):
        yield Case(f"{share:.0%} of {file}", kind, _cut(file, share))
    yield Case("a header of 2^63 bytes", "plain", _text("model.safetensors", HEADER + b"{}"))
    yield Case("weights of other shapes", "plain", _tensors(lambda t: {k: v.flatten() for k, v in t.items()}))
    yield Case("other weights", "plain", _tensors(lambda t: {f"x.{k}": v for k, v in t.items()}))
    yield Case("no weights", "plain", _tensors(lambda t: {}))
    for file in ("model.safetensors", "config.json"):
        yield Case(
            f"{file} is a folder", "plain", _all(_without(file), lambda folder, file=file: (folder / file).mkdir())
        )
    outside = {"weight_map": {"embeddings.word_embeddings.weight": "../../x.safetensors"}}
    for index in (outside, []):
        text = _text("model.safetensors.index.json", json.dumps(index))
        yield Case(f"the index {index}", "plain", _all(_without("model.safetensors"), text))


def _settings(name: str, value: Any) -> Change:
    def change(folder: Path) -> None:
        settings = json.loads((folder / "config.json").read_text())["docsplit"]
        _values("config.json", docsplit=settings | {name: value})(folder)

    return change


CASES = [*_code(), *_options_of_loading(), *_pickles(), *_sizes(), *_no_json(), *_weights()]
