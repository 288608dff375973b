"""The page works by opening the file, shows what was computed, and runs nothing that a document holds."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value

import explore
from docsplit.embedding.lexical_ridge import RidgeSettings, fit
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.neighbours import nearest
from docsplit.embedding.project_modules import with_words
from docsplit.embedding.words_on_disk import save_static
from docsplit.evaluation.results.task import CLASSIFICATION
from docsplit.release import card_results
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config

BROWSER = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
EVIL = "</script><script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"


def unit_vectors(shape, seed=0):
    vectors = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_best_sentences_against_all_pairs():
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 6, size=9)
    starts = np.cumsum([0, *counts])[:-1]
    vectors = unit_vectors((counts.sum(), 6), seed=2)
    neighbours, _ = nearest(unit_vectors((9, 4), seed=3), 3)
    candidates = [np.sort(rng.permutation(count)[: rng.integers(1, count + 1)]) for count in counts]
    sentences = explore.best_sentences(vectors, candidates, starts, neighbours)
    for row in range(9):
        for other, pair in zip(neighbours[row], sentences[row], strict=True):
            cosine = {
                (sentence, other_sentence): float(
                    vectors[starts[row] + sentence] @ vectors[starts[other] + other_sentence]
                )
                for sentence in candidates[row]
                for other_sentence in candidates[other]
            }
            assert pair == max(cosine, key=cosine.get)


def test_a_match_is_a_sentence_that_says_something():
    assert explore.telling(["Lines: 28", "One two three four five six.", "No."]).tolist() == [1]
    assert explore.telling(["Lines: 28", "No."]).tolist() == [0, 1]


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.parametrize("shape", [(3, 8), (30, 2), (60, 16)])
def test_the_map_fits_its_frame(method, shape):
    points, about = explore.map_of(np.random.default_rng(0).normal(size=shape).astype(np.float32), method)
    assert points.shape == (shape[0], 2)
    assert points.min() >= 0
    assert points.max() == 1000
    assert len(np.unique(points, axis=0)) > 1
    assert about


@pytest.fixture(scope="module")
def page(tmp_path_factory, wordpiece):
    """The page of a small corpus with one evil document, made by the script."""
    folder = tmp_path_factory.mktemp("explore")
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), pooling="mean", max_seq_length=64)
    model.save_pretrained(folder / "encoder")
    wordpiece.save_pretrained(folder / "encoder")
    evaluation = folder / "encoder" / "evaluations" / "topics"
    evaluation.mkdir(parents=True)
    row = {"encoder": "e", "head": "mlp", "shots": None, "features": "raw", "runs": 1}
    row |= {f"{name}_{part}": 0.625 for name in ("accuracy", "macro_f1") for part in ("mean", "std")}
    contents = {"title": "Topics", "dataset": "d", "encoder": "e", "task": CLASSIFICATION.to_json(), "rows": [row]}
    (evaluation / "results.json").write_text(json.dumps(contents))
    evil = {"text": f"{EVIL} the very last document.", "label": EVIL}
    rows = [*make_corpus(30), evil, {"text": " ", "label": "x"}]
    (folder / "documents.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    argv = ["explore.py", str(folder / "encoder"), "--corpus", str(folder / "documents.jsonl"), "--map", "pca"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*argv, "--output", str(folder / "page.html"), "--neighbours", "3"])
        explore.main()
    return folder / "page.html"


def in_browser(page, hash_):
    """The page's elements after its script has run, with the network off."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom",
        "--proxy-server=127.0.0.1:9", f"file://{page}#{hash_}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_a_document_its_neighbours_and_the_tables_are_shown(page):
    dom = in_browser(page, "document=0")
    assert 'data-ready="true"' in dom
    first = make_corpus(30)[0]["text"]
    assert first.split(".")[0] in dom
    assert len(re.findall(r'class="score"', dom)) == 3
    assert len(re.findall(r'class="pair"', dom)) == 6
    assert "31 documents" in dom  # the one without text is left out
    assert "62.5" in dom
    assert "kitchen (10)" in dom


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_search_finds_words_and_documents_run_nothing(page):
    dom = in_browser(page, "search=very%20last")
    assert "1 document<" in dom
    assert "the very last document" in dom or "&lt;/script&gt;" in dom
    assert "taken over</title>" not in dom
    assert "<title>encoder on documents.jsonl</title>" in dom
    dom = in_browser(page, "document=30")
    assert "taken over</title>" not in dom
    assert "<img src" not in dom.replace('<img src="data:', "")


def test_the_page_says_how_much_of_a_document_is_read(encoder, tmp_path):
    plain, texts = load_encoder(str(encoder), device="cpu"), [row["text"] for row in make_corpus(30)]
    vectors = plain.encode(texts)
    words, plain_counts = (fit(plain, texts, vectors, RidgeSettings(1.0, 0, flag)).words for flag in (True, False))
    save_static(plain_counts, tmp_path)
    about = "30 documents, embeddings of 32 numbers, "
    assert explore.summary_of(plain, vectors) == f"{about}up to 64 tokens read of each"
    read = "up to 64 tokens read of each, and the words of all of it"
    assert explore.summary_of(with_words(plain, words), vectors) == about + read
    assert explore.summary_of(load_encoder(str(tmp_path)), vectors) == f"{about}whole texts read"


def test_labels_have_the_names_of_the_data_set(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["sea", "land"])})
    rows = Dataset.from_dict({"text": ["a ship", "a tree", "an anchor"], "label": [0, 1, 0]}, features=features)
    rows.to_parquet(tmp_path / "documents.parquet")
    documents = explore.read_documents(str(tmp_path / "documents.parquet"), "text", None, 10)
    assert documents.labels == ["sea", "land", "sea"]


def test_a_folder_of_files_has_their_titles_and_a_label_wants_a_table(tmp_path):
    (tmp_path / "a.md").write_text("# The harbour\n\nBoats.")
    (tmp_path / "b.html").write_text("<title>Sails</title><p>Torn.")
    (tmp_path / "c.csv").write_text("text,title,topic\nA rope.,Ropes,sea\nA tree.,Trees,land\nAn oak.,Oaks,land\n")
    documents = explore.read_documents(str(tmp_path), "text", None, 10)
    assert documents.titles == ["The harbour", "Sails", "Ropes", "Trees", "Oaks"]
    assert documents.labels is None
    documents = explore.read_documents(str(tmp_path), "text", "topic", 10)
    assert (documents.titles, documents.labels) == (["Ropes", "Trees", "Oaks"], ["sea", "land", "land"])


def test_bad_corpora_get_clear_errors(tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text('{"text": "one"}\n{"text": ""}\n')
    with pytest.raises(ValueError, match="has 1 documents with text"):
        explore.read_documents(str(path), "text", None, 10)
    with pytest.raises(ValueError, match=r"--label_column is 'topic', but the columns are \['text'\]"):
        explore.read_documents(str(path), "text", "topic", 10)


def test_the_tables_are_those_of_the_card(page):
    """Cells as data: nothing in them is Markdown."""
    text = card_results.evaluation_text({}, card_results.read_evaluations(page.parent / "encoder"))
    assert "**62.5** |" in text
    (table,) = explore.tables_of(page.parent / "encoder")
    assert table == {
        "title": "Topics: d · Full training set",
        "rows": [["encoder", "mlp: Accuracy", "mlp: Macro-F1"], ["e", "62.5", "62.5"]],
    }


def test_a_path_that_leads_nowhere_is_refused_before_the_documents_are_read(tmp_path, failure_of, monkeypatch):
    monkeypatch.setattr(explore, "read_documents", None)
    missing = tmp_path / "none"
    assert f"There is no {missing}: name a folder with an encoder or an index" in failure_of(explore.main, missing)
