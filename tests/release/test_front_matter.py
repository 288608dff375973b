"""The front matter of a card: where the weights come from, and under which licence."""

import pytest

from docsplit.release.front_matter import UNKNOWN, is_hub_name, licence_of, licence_text, metadata, start_of
from docsplit.release.run_record import Licence, RunRecord, Start

RUN = {"hardware": "a CPU", "processes": 1, "commit": None}


def card(path, **values):
    path.write_text("".join(["---\n", *(f"{key}: {value}\n" for key, value in values.items()), "---\ntext\n"]))
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [("user/name", True), ("user/name:en", True), ("name", False), ("a/b/c", False), ("a b/c", False), (None, False)],
)
def test_names_of_the_hub(name, expected):
    assert is_hub_name(name) is expected


def test_a_start_without_a_licence_is_unknown_and_warned_of(tmp_path, caplog):
    assert start_of(str(tmp_path)) == Start(None, Licence(UNKNOWN))
    assert "states no licence" in caplog.text


def test_a_folder_has_the_base_model_and_licence_of_its_card(tmp_path):
    card(tmp_path / "README.md", base_model="user/first", license="other", license_name="odd")
    assert start_of(str(tmp_path)) == Start("user/first", Licence("other", "odd"))


def test_an_earlier_licence_stays_unless_it_is_that_of_other_weights(tmp_path, caplog):
    start = Start("user/second", Licence("mit"))
    assert licence_of(tmp_path / "none.md", start) == Licence("mit")
    assert licence_of(card(tmp_path / "by_hand.md", license="apache-2.0"), start) == Licence("apache-2.0")
    same = card(tmp_path / "same.md", license="apache-2.0", base_model="user/second")
    assert licence_of(same, start) == Licence("apache-2.0")
    assert not caplog.text
    other = card(tmp_path / "other.md", license="apache-2.0", base_model="user/first")
    assert licence_of(other, start) == Licence("mit")
    assert "weights from another start" in caplog.text
    assert licence_of(other, Start()) == Licence("apache-2.0")  # random weights have no start


@pytest.mark.parametrize(
    ("licence", "start", "text"),
    [
        (Licence(), Start(), "No licence was stated for these weights."),
        (Licence(UNKNOWN), Start("a", Licence(UNKNOWN)), "The licence of these weights is unknown: their start states "
         "none."),
        (Licence("mit"), Start(), "These weights have the licence mit."),
        (Licence("other", "odd"), Start("a", Licence("other")), "These weights have the licence odd, as their start "
         "has."),
    ],
)  # fmt: skip
def test_the_sentence_on_the_licence(licence, start, text):
    assert licence_text(licence, start) == text


@pytest.mark.parametrize(
    ("record", "base", "datasets"),
    [
        ({"options": {"model_name_or_path": "a/b", "corpus": "c/d:en"}}, "a/b", ["c/d"]),  # older than `start`
        ({"options": {"model_name_or_path": "a/b"}, "local": ["model_name_or_path"]}, None, None),
        ({"options": {"corpus": "c/d"}, "local": ["corpus"]}, None, None),
        ({"options": {"model_name_or_path": "outputs"}, "start": Start("a/b", Licence("mit"))}, "a/b", None),
        ({"options": {}, "start": Start()}, None, None),
    ],
)
def test_only_names_of_the_hub_are_linked(record, base, datasets):
    data = metadata("user/name", RunRecord(**RUN, **record), Licence("mit"), None)
    assert (data.base_model, data.datasets, data.license) == (base, datasets, "mit")


def test_without_a_record_nothing_is_linked():
    data = metadata("user/\nname", None, Licence(), []).to_dict()
    assert data["model_name"] == "user/ name"
    assert not {"base_model", "datasets", "license", "license_name", "license_link", "model-index"} & set(data)
