"""The benchmark of sentence splitters counts right cases by category. No time is asserted."""

import json

from benchmarks.speed import segmentation


def test_docstrings_are_the_long_ones_of_code_that_can_be_read(tmp_path, monkeypatch):
    (tmp_path / "test").mkdir()
    long = "word " * 60
    code = f'"""{long}module."""\ndef short():\n    """A few words."""\nclass Long:\n    """{long}class."""\n'
    for name, text in {"good.py": code, "bad.py": "def (", "test/good.py": code}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(segmentation.sysconfig, "get_path", lambda name: str(tmp_path))
    assert [text.split()[-1] for text in segmentation.standard_library_docstrings()] == ["module.", "class."]


def test_a_case_is_right_if_all_its_sentences_are():
    cases = [{"category": "plain", "text": "a. b.", "sentences": ["a.", "b."]},
             {"category": "plain", "text": "c. d.", "sentences": ["c. d."]},
             {"category": "title", "text": "Dr. e.", "sentences": ["Dr. e."]}]  # fmt: skip
    by_points = segmentation.measure_quality(lambda text: [f"{part}." for part in text[:-1].split(". ")], cases)
    assert by_points == {"plain": 1}
    assert segmentation.measure_quality(lambda text: [text], cases) == {"plain": 1, "title": 1}


def test_what_it_writes(run_here, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(segmentation, "standard_library_docstrings", lambda: ["One sentence. And another one."] * 5)
    run_here(segmentation.main, "--max_documents", 3, "--rounds", 1, "--output", tmp_path / "segmentation.json")
    results = json.loads((tmp_path / "segmentation.json").read_text())
    cases = json.loads(segmentation.CASES.read_text())
    assert (results["cases"], results["documents"], results["words_per_document"]) == (len(cases), 3, 5)
    rules, sentencizer = (results["splitters"][name] for name in ("rules", "sentencizer"))
    assert rules["cases_right"] == sum(rules["cases_right_by_category"].values()) > sentencizer["cases_right"]
    assert sentencizer["speed_to_sentencizer"] == 1
    assert f"{rules['cases_right']} / {len(cases)}" in capsys.readouterr().out
