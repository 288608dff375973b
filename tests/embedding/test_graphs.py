"""Whole documents to vectors with a graph document model: every loader and every way to embed gives the same."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from docsplit.data.passages import to_passages
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.encoder import Encoder
from docsplit.modeling.families.graph_document_transformer import GraphDocumentTransformer
from docsplit.modeling.loading import load_encoder
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel
from tests.conftest import make_corpus, tiny_config

WORDS = 15  # of a passage


def with_headings(text):
    """A heading before each third sentence, so that documents have sections."""
    sentences = text.split(". ")
    return "".join(f"\n\n## Part {n // 3}\n\n{s}. " if n % 3 == 0 else f"{s}. " for n, s in enumerate(sentences))


TEXTS = [with_headings(row["text"]) for row in make_corpus(47, seed=5)] + ["Bread.", "", "\x00 tide " * 40]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, wordpiece):
    """A folder as the pretraining script leaves it."""
    folder = tmp_path_factory.mktemp("graph")
    torch.manual_seed(0)
    config = GraphDocumentConfig(
        tiny_config(wordpiece, initializer_range=0.3), graph_hidden_size=16, graph_kind="section", passage_words=WORDS
    )
    settings = {"similarity": "dot", "contrastive_temperature": 1.0, "max_seq_length": 24}
    model = DocSplitForContrastivePretraining.from_config(config, wordpiece, **settings)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(checkpoint):
    """Embed each document by itself, without any batch."""
    model, tokenizer = AutoModel.from_pretrained(checkpoint).eval(), AutoTokenizer.from_pretrained(checkpoint)
    vectors = []
    for text in TEXTS:
        passages, sections = zip(*(to_passages(text, WORDS) or [("", 0)]))
        batch = tokenizer(list(passages), truncation=True, max_length=24, padding=True, return_tensors="pt")
        section = torch.tensor(sections)
        with torch.no_grad():
            output = model(batch["input_ids"], batch["attention_mask"], section=section)
        vectors.append(output.embeddings[0].numpy())
    return np.stack(vectors)


def test_every_way_to_embed_gives_the_same_vectors(checkpoint, expected):
    assert np.abs(expected[0] - expected[1]).max() > 1e-2
    assert max(len(to_passages(text, WORDS)) for text in TEXTS) > 4
    body = DocSplitForContrastivePretraining.from_pretrained(checkpoint).train().body
    options = {"dtype": torch.float32}
    encoder = load_encoder(str(checkpoint), device="cpu")
    assert type(encoder[0]) is GraphDocumentTransformer
    assert encoder.similarity_fn_name == "dot"
    assert encoder.max_seq_length == 24
    for name, vectors in {
        "in training": embed_documents(body, TEXTS, **options)[0],
        "in small micro-batches": embed_documents(body, TEXTS, micro_batch_tokens=50, **options)[0],
        "in bulk": embed_documents(encoder, TEXTS, dtype=torch.float32)[0],
        "by sentence-transformers": encoder.encode(TEXTS, batch_size=7),
        "as its documents": encoder.encode_document(TEXTS),
    }.items():
        np.testing.assert_allclose(vectors, expected, atol=1e-5, rtol=0, err_msg=name)
    assert body[0].model.training
    _, facts = Encoder(str(checkpoint)).embed_all(TEXTS[:3])
    assert facts["long_documents"] == "passages"
    encoder.truncate_dim = 5
    np.testing.assert_allclose(embed_documents(encoder, TEXTS, dtype=torch.float32)[0], expected[:, :5], atol=1e-5)
    encoder.truncate_dim = None
    half = embed_documents(encoder, TEXTS, dtype=torch.bfloat16)[0]
    assert 1e-4 < np.abs(half - expected).max() < 0.05


def test_the_remote_code_is_never_run_here(checkpoint, tmp_path, expected):
    folder = shutil.copytree(checkpoint, tmp_path / "graph")
    for path in folder.glob("*.py"):
        path.write_text("raise RuntimeError('remote code')\n")
    assert type(AutoModel.from_pretrained(folder, trust_remote_code=True)) is GraphDocumentModel
    vectors = load_encoder(str(folder), device="cpu").encode(TEXTS[:3])
    np.testing.assert_allclose(vectors, expected[:3], atol=1e-5, rtol=0)


ELSEWHERE = """
import json, sys
sys.modules |= dict.fromkeys(("docsplit", "modeling_docsplit", "modeling_graph_document"))  # importing them raises
import numpy as np, torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

folder, texts, out = sys.argv[1:]
texts = json.load(open(texts))
model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
plain = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
batch = model.preprocess(texts[:3])
with torch.no_grad():
    by_transformers = plain(**batch).embeddings.numpy()
np.savez(out, vectors=model.encode(texts), by_transformers=by_transformers, query=model.encode_query(texts[:1]))
json.dump([[list(passage) for passage in passages] for passages in model[0].passages(texts)], sys.stdout)
model.save(folder + "-again")
"""


def test_a_process_without_this_package_has_the_same_passages_and_vectors(checkpoint, expected, tmp_path):
    load_encoder(str(checkpoint), device="cpu").save(str(tmp_path / "saved"))  # by sentence-transformers, here
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    (tmp_path / "modules").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1"}
    words = ["-c", ELSEWHERE, "saved", "texts.json", "out.npz"]
    command = [sys.executable, *words]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    ours = [[list(passage) for passage in to_passages(text, WORDS)] or [["", 0]] for text in TEXTS]
    assert json.loads(result.stdout) == ours
    assert max(section for passages in ours for _, section in passages) > 1
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_allclose(saved["vectors"], expected, atol=1e-5, rtol=0)
        np.testing.assert_allclose(saved["by_transformers"], expected[:3], atol=1e-5, rtol=0)
        query = saved["query"]
    again = tmp_path / "saved-again"  # and saved there
    encoder = load_encoder(str(again), device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS[:3]), expected[:3], atol=1e-5, rtol=0)
    np.testing.assert_allclose(encoder.encode_query(TEXTS[:1]), query, atol=1e-5, rtol=0)


def test_documents_without_sections_are_said_to_have_none(checkpoint, caplog):
    plain = [row["text"] for row in make_corpus(3, seed=7)]
    encoder = Encoder(str(checkpoint))
    said = f"{checkpoint} joins passages by section (graph_kind section), and none of the first 3 documents has two"
    encoder.embed_all(plain)
    assert caplog.text.count(said) == 1
    caplog.clear()
    encoder.embed_all([*plain, TEXTS[0]])  # one has sections
    encoder._model[0].config.graph_kind = "full"
    encoder.embed_all(plain)
    assert "by section" not in caplog.text
