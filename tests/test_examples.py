"""docs/python.md, docstrings, the notebook and the example of a Trainer run as they are written, on tiny stand-ins."""

import doctest
import json
import re
from collections import Counter
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM

import docsplit
from docsplit.data import corpora
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import TOPICS, make_corpus, make_document, tiny_config, weights_of
from tests.processes import ROOT, run

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
NOTEBOOK = ROOT / "examples" / "adapt_and_search.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


# --- docs/python.md ---


def recipes():
    """(code, the output that stands below it) of each block of Python."""
    return re.findall(r"```python\n((?s:.*?))```\n\n((?:    .*\n)*)", PAGE)


@pytest.fixture
def place(tmp_path, monkeypatch, wordpiece, reads_little):
    """A folder in which the names of the page are those of tiny encoders and documents."""
    (tmp_path / "documents").mkdir()
    for number, row in enumerate(make_corpus(100)):
        (tmp_path / "documents" / f"{number}.txt").write_text(row["text"])
    (tmp_path / MINILM).parent.mkdir()
    (tmp_path / MINILM).symlink_to(reads_little)
    bert = tiny_config(wordpiece, max_position_embeddings=512)
    model = DocSplitForContrastivePretraining.from_config(bert, wordpiece, pooling="mean")
    model.save_pretrained(tmp_path / "bert-base-uncased")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_recipes_run_as_they_are_written(place, capsys):
    names = {"__name__": "page"}
    assert len(recipes()) == 5
    assert f"```python\n{recipes()[0][0]}```" in (ROOT / "README.md").read_text(encoding="utf-8")
    for code, output in recipes():
        assert sum(bool(line) and not line.startswith("from ") for line in code.splitlines()) < 14
        exec(compile(code, "docs/python.md", "exec"), names)
        printed = capsys.readouterr().out
        if output:  # of another encoder and other documents, with as many lines
            assert printed.count("\n") == output.count("\n"), printed
    assert names["vectors"].shape == (100, 32)
    assert len(names["index"]) == 100
    assert names["adapted"].kept == "words"
    assert names["trainer"].state.global_step == 6  # three epochs of two batches
    trained = str(place / "outputs" / "trained")
    vector = SentenceTransformer(trained).encode("A ship.")
    assert vector.shape == (32,)
    (head,) = re.findall(r"`(AutoModelForMaskedLM.*?\))`", PAGE)
    assert len(eval(head, {"AutoModelForMaskedLM": AutoModelForMaskedLM}).cls.predictions.bias) > 0


# --- Docstrings ---


@pytest.mark.parametrize("name", docsplit.__all__)
def test_the_example_of_a_public_name_runs_as_it_is_written(name, place, monkeypatch):
    """An encoder of 32 numbers stands in for one of 384."""
    rows = [row | {"part": "train"} for row in make_corpus(40)]
    monkeypatch.setattr(corpora, "_load_python_docs", lambda: Dataset.from_list(rows))
    public = getattr(docsplit, name)
    parsed = doctest.DocTestParser().get_doctest(public.__doc__, {}, name, public.__module__, 0)
    assert parsed.examples
    for example in parsed.examples:
        example.want = example.want.replace("384", "32")
    told = StringIO()
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(parsed, out=told.write)
    assert told.getvalue() == ""


# --- The notebook ---


def test_the_committed_outputs_show_no_error_and_no_place():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert all(cell["execution_count"] for cell in CODE)
    assert '"output_type": "error"' not in text
    assert not re.search(r"(?<![\w.:/])/(?:home|root|tmp|work|usr|Users|opt|mnt)/", text)


def test_the_cells_run(tmp_path, monkeypatch, reads_little, capsys):
    """With a tiny encoder, and tiny documents under the names of the corpus."""
    packages = re.findall(r'"(\w+\.\w+)"', "".join(CODE[1]["source"]).partition("MOST")[0])
    assert len(packages) == 8
    rng = np.random.default_rng(0)
    rows = [
        {"id": f"{package}.{part}_{number}", "text": text, "label": package, "part": part}
        for place, package in enumerate(packages)
        for part, count in (("train", 8), ("validation", 2), ("test", 4))
        for number in range(count)
        for text in (make_document(rng, list(TOPICS)[place % len(TOPICS)], 12),)
    ]
    load = corpora.load_corpus

    def load_tiny(name, **more):
        return Dataset.from_list(rows) if name == "python_docs" else load(name, **more)

    monkeypatch.setattr(corpora, "load_corpus", load_tiny)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setenv("DOCSPLIT_ENCODER", str(reads_little))
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    for number, cell in enumerate(CODE):
        source = "".join(cell["source"]).replace("STEPS = 60", "STEPS = 3")
        exec(compile(source, f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "{'train': 64, 'validation': 16, 'test': 32}" in printed
    for name in ("TF-IDF", "random", "pretrained", "as it is", "adapted"):
        assert re.search(rf"^{name} +\d+\.\d ± \d+\.\d %$", printed, re.MULTILINE), name
    assert "64 documents\n40 labels: " in printed
    assert Counter(names["split"].test_labels.tolist()) == dict.fromkeys(range(8), 4)
    assert names["trainer"].state.global_step == 3
    assert Path("outputs/notebook/adapted/modules.json").exists()


# --- examples/pretrain_with_trainer.py ---


def example_with(**constants):
    code = (ROOT / "examples" / "pretrain_with_trainer.py").read_text(encoding="utf-8")
    for name, value in constants.items():
        code, count = re.subn(rf"(\b{name} ?= ?)(\"[^\"]*\"|\d+)", rf"\g<1>{value!r}", code)
        assert count == 1, name
    return code


def test_the_example_trains_what_the_recipe_of_the_page_trains(place):
    exec(compile(recipes()[0][0], "docs/python.md", "exec"), {"__name__": "page"})
    exec(
        compile(example_with(CORPUS="documents/", OUTPUT="outputs/script"), "example", "exec"),
        {"__name__": "__main__"},
    )
    page, script = weights_of(place / "outputs" / "trained"), weights_of(place / "outputs" / "script")
    start = weights_of(place / "bert-base-uncased")
    assert any((value != start[name]).any() for name, value in page.items())
    assert all((value == script[name]).all() for name, value in page.items())


@pytest.mark.parametrize("has_length", [True, False])
def test_the_stock_trainer_makes_an_encoder_that_loads_without_a_report(headless, tmp_path, caplog, has_length):
    """Two processes; with one the encoder is that of the page. Documents are held out, and the log has their loss."""
    corpus, output = tmp_path / "documents.jsonl", tmp_path / "out"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in make_corpus(160)))
    constants = {"START": str(headless), "CORPUS": str(corpus), "OUTPUT": str(output)}
    code = example_with(**constants, per_device_train_batch_size=20)
    if not has_length:  # batches of several lengths, which accelerate would join
        code = code.replace("collator, train,", "collator, train.to_iterable_dataset(),")
        code = code.replace("        OUTPUT,", "        OUTPUT,\n        max_steps=9,")
    result = run("-c", code, processes=2)
    assert f"{output} gives vectors of 32 numbers." in result.stdout
    assert len(re.findall(r"'eval_loss': '\d", result.stdout)) == 3  # epochs
    _, info = AutoModel.from_pretrained(output, output_loading_info=True)
    assert not any(info.values()), info
    assert "LOAD REPORT" not in caplog.text + result.stderr
