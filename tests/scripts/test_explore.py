"""The page works by opening the file, shows what was computed, and runs nothing that a document holds."""

import contextlib
import html
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import explore
from docsplit.evaluation.results.result import CLASSIFICATION
from docsplit.explorer.page import tables_of
from docsplit.release.model_card import evaluation_text
from docsplit.release.records import read_evaluations
from tests.conftest import make_corpus
from tests.explorer.test_page import payload_of

BROWSER = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
EVIL = "</script><script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"


@pytest.fixture(scope="module")
def page(tmp_path_factory, encoder):
    """The page of a small corpus with one evil document, made by the script."""
    folder = tmp_path_factory.mktemp("explore")
    shutil.copytree(encoder, folder / "encoder")
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
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(sys, "argv", [*argv, "--output", str(folder / "page.html"), "--neighbours", "3"])
        explore.main()
    (folder / "page.txt").write_text(printed.getvalue())
    return folder / "page.html"


def in_browser(page, place=""):
    """The page's elements after its script has run, with the network off."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom",
        "--proxy-server=127.0.0.1:9", f"file://{page}#{place}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")


@needs_browser
def test_the_page_opens_with_a_document_its_neighbours_and_the_tables(page):
    dom = in_browser(page)
    assert 'data-ready="true"' in dom
    payload = payload_of(page.read_text())
    title = html.escape(payload["titles"][payload["opening"]], quote=False)
    assert re.search(rf"<h2>{re.escape(title)}", dom)
    assert len(re.findall(r'class="pair"', dom)) == 6
    dom = in_browser(page, "document=0")
    assert make_corpus(30)[0]["text"].split(".")[0] in dom
    assert len(re.findall(r'class="score"', dom)) == 3
    assert "31 documents" in dom  # the one without text is left out
    assert "62.5" in dom
    assert "kitchen (10)" in dom


@needs_browser
def test_search_finds_words_and_documents_run_nothing(page):
    dom = in_browser(page, "search=very%20last")
    assert "1 document<" in dom
    assert re.search(r'<mark class="hit">very</mark> <mark class="hit">last</mark>', dom)
    assert "taken over</title>" not in dom
    assert "<title>encoder on documents.jsonl</title>" in dom
    dom = in_browser(page, "document=30")
    assert "&lt;/script&gt;" in dom
    assert "taken over</title>" not in dom
    assert "<img src" not in dom.replace('<img src="data:', "")


def test_the_tables_are_those_of_the_card(page):
    """Cells as data: nothing in them is Markdown."""
    text = evaluation_text({}, read_evaluations(page.parent / "encoder"))
    assert "**62.5** |" in text
    (table,) = tables_of(page.parent / "encoder")
    assert table == {
        "title": "Topics: d",
        "rows": [["encoder", "head", "Accuracy", "95 % interval", "Macro-F1"], ["e", "mlp", "62.5", "", "62.5"]],
    }


def test_the_page_lies_beside_what_it_shows(tmp_path, monkeypatch, capsys):
    index = tmp_path / "notes.index"
    index.mkdir()
    (index / "manifest.json").touch()
    assert explore.default_output(index) == tmp_path / "notes.index.html"
    assert explore.default_output(Path("user/all-MiniLM")) == Path("all-MiniLM.html")  # of the Hub: here
    monkeypatch.chdir(index)
    assert explore.default_output(Path(".")) == tmp_path / "notes.index.html"
    monkeypatch.setattr(sys, "argv", ["explore.py", str(index), "--output", str(index / "page.html")])
    with pytest.raises(SystemExit):
        explore.parse_options()
    assert "belongs to search.py: name a file outside of it" in capsys.readouterr().err


def test_a_path_that_leads_nowhere_is_refused_before_the_documents_are_read(tmp_path, failure_of, monkeypatch):
    monkeypatch.setattr("docsplit.explorer.documents.read_explored", None)
    missing = tmp_path / "none"
    assert f"There is no {missing}: name a folder with an encoder or an index" in failure_of(explore.main, missing)
