"""Whatever others wrote, cards and reports keep their form, and a value of another type is one line."""

import re
from pathlib import Path
from shutil import copytree

import pytest

from docsplit.release.model_card import write_card
from tests.hostile_folders import build
from tests.release.hostile_cards import (
    ADAPTED,
    CONTENTS,
    EVALUATION,
    HARMLESS,
    PAYLOADS,
    PLACES,
    RESULTS,
    ROW,
    RUN,
    raw_html,
    structure,
    write_files,
)
from tests.release.hub_rules import front_matter, problems


@pytest.fixture(scope="module")
def checkpoint_files(wordpiece, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards") / "model"
    build("ours", folder, wordpiece)
    return folder


@pytest.mark.parametrize("place", [place for place in PLACES if not place.endswith(".html")])
def test_texts_of_others_stay_texts(place, checkpoint_files, tmp_path):
    def page(name, text):
        return PLACES[place](copytree(checkpoint_files, tmp_path / name / "model"), text)

    expected = structure(page("harmless", HARMLESS))
    for name, payload in PAYLOADS.items():
        text = page(name, payload)
        assert raw_html(text) == [], name
        assert structure(text) == expected, name
        assert "stolen" not in (front_matter(text).get("license"), *front_matter(text).get("tags", [])), name
        if front_matter(text):
            assert not [problem for problem in problems(text) if not problem.startswith("language")], name


def test_the_page_of_an_analysis_has_no_tags_of_others(tmp_path):
    for number, text in enumerate(PAYLOADS.values()):
        (tmp_path / str(number)).mkdir()
        page = PLACES["analysis.html"](tmp_path / str(number), text)
        assert page.count("<") == PLACES["analysis.html"](tmp_path / str(number), HARMLESS).count("<")


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("run.json", RUN | {"hardware": 5}, "hardware"),
        ("run.json", RUN | {"start": {"license": ["mit"]}}, "license"),
        ("all_results.json", RESULTS | {"train_loss": "<b>x</b>"}, "train_loss"),
        ("evaluations/e/results.json", EVALUATION | {"rows": [ROW | {"accuracy_mean": "x"}]}, "accuracy_mean"),
        ("adapt.json", ADAPTED | {"facts": ADAPTED["facts"] | {"pieces": "x"}}, "facts"),
    ],
)
def test_values_of_another_type_are_a_line_with_file_and_key(name, content, key, checkpoint_files, tmp_path):
    folder = copytree(checkpoint_files, tmp_path / "model")
    write_files(folder, CONTENTS | {name: content})
    with pytest.raises(ValueError, match=f"{re.escape(Path(name).name)}.*{key}") as failure:
        write_card(folder)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("content", [b"[]", b'{"a": ', b"[" * 100_000])
def test_files_that_are_damaged_are_a_line(content, checkpoint_files, tmp_path):
    folder = copytree(checkpoint_files, tmp_path / "model")
    (folder / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"run.json is damaged: it holds no JSON"):
        write_card(folder)


@pytest.mark.parametrize(
    "card",
    [
        "license: [mit, apache-2.0]\nlanguage: {a: b}\nbase_model: 7\ntags: 5",
        "license: " + "[" * 5000,
        "license: !!python/object/apply:os.system [x]",
    ],
)
def test_an_earlier_card_that_is_damaged_is_written_anew(card, checkpoint_files, tmp_path):
    folder = copytree(checkpoint_files, tmp_path / "model")
    (folder / "README.md").write_bytes(f"---\n{card}\n---\n".encode(errors="surrogateescape"))
    write_files(folder, CONTENTS)
    assert front_matter(write_card(folder))["license_name"] == "mit"  # of the start
