"""Data that may be fetched, from a server of this machine."""

import io
import json
import re
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

import reproduce
from benchmarks.studies.reproduction import plan
from tests.processes import ROOT

RECIPE = ROOT / "recipes" / "reproduction" / "docsplit.yaml"
POSTS = {"20news-bydate-train/sci.space/1": "Subject: a\n\nStars \xe9", "20news-bydate-train/rec.autos/2": "Cars",
         "20news-bydate-test/sci.space/3": "Moon"}  # fmt: skip
NEWS = {"bbc/README.TXT": "no document", "bbc/sport/001.txt": "Goal", "bbc/tech/001.txt": "Chips \xa3"}
PAIRS = {f"lra_release/lra_release/tsv_data/new_aan_pairs.{part}.tsv": f"1.0\ta\tb\t{part}\tx\n"
         for part in ("train", "eval", "test")}  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def table(tmp_path, monkeypatch):
    """The repository's table, with this machine's server in place of the addresses, and without checksums."""
    served = tmp_path / "served"
    served.mkdir()
    with tarfile.open(served / "news.tar.gz", "w:gz") as archive:
        for name, text in POSTS.items():
            member = tarfile.TarInfo(name)
            content = text.encode("latin-1")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with zipfile.ZipFile(served / "bbc.zip", "w") as archive:
        for name, text in NEWS.items():
            archive.writestr(name, text.encode("latin-1"))
    with tarfile.open(served / "lra.gz", "w:gz") as archive:
        for name, text in PAIRS.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=served))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    known = yaml.safe_load(plan.DATA_SETS.read_text())
    for name, file in {"20newsgroups": "news.tar.gz", "bbc": "bbc.zip", "aan": "lra.gz"}.items():
        stated = known[f"data/{name}"]["fetch"]
        stated.pop("sha256", None)
        stated["url"] = f"http://127.0.0.1:{server.server_port}/{file}"
    monkeypatch.setattr(plan, "data_sets", lambda: known)
    yield known
    server.shutdown()


def rows_in(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_what_may_be_fetched_is_brought_and_the_rest_is_named(table, tmp_path, run_here, capsys):
    data = tmp_path / "data"
    run_here(reproduce.main, RECIPE, "--fetch", "--data_dir", data)
    said = capsys.readouterr().out
    assert rows_in(data / "20newsgroups" / "train.jsonl") == [
        {"text": "Subject: a\n\nStars \xe9", "label": "sci.space"},
        {"text": "Cars", "label": "rec.autos"},
    ]
    assert rows_in(data / "20newsgroups" / "test.jsonl") == [{"text": "Moon", "label": "sci.space"}]
    assert rows_in(data / "bbc" / "train.jsonl") == [
        {"text": "Goal", "label": "sport"},
        {"text": "Chips \xa3", "label": "tech"},
    ]
    assert {file.name: file.read_text() for file in (data / "aan").iterdir()} == {
        name.rpartition("/")[2]: text for name, text in PAIRS.items()
    }
    assert (
        "nyt: not fetched; docs/datasets.md makes it of https://catalog.ldc.upenn.edu/LDC2008T19 (licence: LDC's)"
        in said
    )
    # Nothing that is here is fetched again; a file that is not the one meant is refused, and leaves nothing
    run_here(reproduce.main, RECIPE, "--fetch", "--data_dir", data)
    assert "bbc" not in capsys.readouterr().out
    table["data/bbc"]["fetch"]["sha256"] = "0" * 64
    table["data/aan"]["fetch"]["url"] += ".gone"
    run_here(reproduce.main, RECIPE, "--fetch", "--data_dir", tmp_path / "other")
    said = capsys.readouterr().out
    assert "its SHA-256 is not 000" in said
    assert "lra.gz.gone cannot be read: HTTP Error 404" in said
    assert {path.name for path in (tmp_path / "other").iterdir()} == {"20newsgroups"}


@pytest.mark.parametrize("files", [(), ("papers.parquet",), ("new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv")])
def test_a_folder_without_all_files_of_its_set_is_a_set_that_is_not_here(files, tmp_path, run_here, capsys):
    """Empty, of another use, or of a download that broke."""
    for name in ("aan", "bbc"):
        (tmp_path / "data" / name).mkdir(parents=True)
    for name in files:
        (tmp_path / "data" / "aan" / name).write_text("x")
    words = [RECIPE, "--data_dir", tmp_path / "data", "--output_dir", tmp_path / "out"]
    run_here(reproduce.main, *words, "--list")
    assert "needs AAN: see docs/datasets.md (data/aan)\n" in capsys.readouterr().out
    for name in ("train", "eval", "test"):
        (tmp_path / "data" / "aan" / f"new_aan_pairs.{name}.tsv").write_text("x")
    run_here(reproduce.main, *words, "--list")
    said = capsys.readouterr().out
    assert "needs BBCNews" in said
    assert "needs AAN" not in said


def test_the_page_of_data_makes_each_set_that_is_not_fetched():
    page = (ROOT / "docs" / "datasets.md").read_text()
    made = "".join(re.findall(r"```(?:python|bash)\n(.*?)```", page, flags=re.DOTALL))
    needed = {place for place, facts in plan.data_sets().items() if place.startswith("data/") and "fetch" not in facts}
    assert len(needed) > 10
    needed |= {"data/aan/papers.parquet", "data/aan/citations.tsv", "data/robust04/folds.json"}
    assert [place for place in needed if place not in made and f'"{place.removeprefix("data/")}"' not in made] == []
    assert '"attention")' in made, "data/wikir62k/attention.jsonl"
