"""Whatever others wrote, cards and reports keep their form, and a value of another type is one line."""

import re
from pathlib import Path
from shutil import copytree

import pytest

from docsplit.release.model_card import write_card
from tests.hostile_folders import build
from tests.release.hostile_cards import (
    CONTENTS,
    HARMLESS,
    PAYLOADS,
    PLACES,
    front_matter,
    raw_html,
    structure,
    write_files,
    wrong_values,
)


@pytest.fixture(scope="module")
def checkpoint_files(wordpiece, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards") / "model"
    build("ours", folder, wordpiece)
    return folder


@pytest.mark.parametrize("place", [place for place in PLACES if not place.endswith(".html")])
def test_texts_of_others_stay_texts(place, checkpoint_files, tmp_path):
    """Each place gets four of the texts, and each text comes to a dozen places; the soak test tries all."""
    write, names = PLACES[place], list(PAYLOADS)
    first = list(PLACES).index(place)

    def page(text):
        return write(copytree(checkpoint_files, tmp_path / str(len(list(tmp_path.iterdir()))) / "model"), text)

    expected = structure(page(HARMLESS))
    for name in {names[(first + step) % len(names)] for step in (0, 5, 9, 14)}:
        text = page(PAYLOADS[name])
        assert raw_html(text) == [], name
        assert structure(text) == expected, name
        assert "stolen" not in (front_matter(text).get("license"), *front_matter(text).get("tags", [])), name


def test_the_page_of_an_analysis_has_no_tags_of_others(tmp_path):
    for number, text in enumerate(PAYLOADS.values()):
        (tmp_path / str(number)).mkdir()
        page = PLACES["analysis.html"](tmp_path / str(number), text)
        assert page.count("<") == PLACES["analysis.html"](tmp_path / str(number), HARMLESS).count("<")


def test_values_of_another_type_are_a_line_with_file_and_key(checkpoint_files, tmp_path):
    wrong, refused, count = [], 0, 0
    for count, (file, path, value, contents) in enumerate(wrong_values(), start=1):
        folder = copytree(checkpoint_files, tmp_path / str(count))
        write_files(folder, contents)
        try:
            assert raw_html(write_card(folder)) == []
        except ValueError as error:
            said, refused = str(error), refused + 1
            keys = [re.sub("_(mean|std)$", "", key) for key in path if isinstance(key, str)]
            if "\n" in said or Path(file).name not in said or not any(key in said for key in keys):
                wrong.append((file, path, value, said))
    assert not wrong
    assert refused > 300
    assert count > 400


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("content", ["", "[]", "7", '{"a": ', "[" * 100_000, b"\xff\xfe{}"])
def test_files_that_are_damaged_are_a_line(name, content, checkpoint_files, tmp_path):
    folder = copytree(checkpoint_files, tmp_path / "model")
    write_files(folder, CONTENTS)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"{Path(name).name} is damaged: it holds no JSON") as failure:
        write_card(folder)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    "card",
    [
        "- a\n- b",
        "license: [mit, apache-2.0]\nlanguage: {a: b}\nbase_model: 7\ntags: 5",
        "1: 2\nself: x\nmodel-index: 5\nignore_metadata_errors: 1",
        "license: " + "[" * 5000,
        "\tx: y",
        "license: !!python/object/apply:os.system [x]",
        "license: \udcff",
        "license: mit\nbase_model: [a, 5, {b: c}]\nlanguage: [no, 5]",
    ],
)
def test_an_earlier_card_that_is_damaged_is_written_anew(card, checkpoint_files, tmp_path):
    folder = copytree(checkpoint_files, tmp_path / "model")
    (folder / "README.md").write_bytes(f"---\n{card}\n---\n".encode(errors="surrogateescape"))
    write_files(folder, CONTENTS)
    assert front_matter(write_card(folder))["license"] == "mit"  # of the start, or as it was stated
