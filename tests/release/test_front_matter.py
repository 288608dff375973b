"""The front matter of a card: where the weights come from, and under which licence."""

import pytest

from docsplit.release.card_results import model_index
from docsplit.release.front_matter import (
    UNKNOWN,
    as_the_hub_takes_it,
    is_hub_name,
    licence_of,
    licence_text,
    metadata,
    start_of,
    valid_names,
)
from docsplit.release.run_record import Licence, RunRecord, Start
from tests.processes import ROOT
from tests.release.hub_rules import LICENCES, front_matter, problems

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


@pytest.mark.parametrize(
    ("stated", "language"),
    [("en", "en"), ("[en, deu]", ["en", "deu"]), ("no", None), ("[en, no]", None), ("{a: b}", None)],
)
def test_a_start_has_the_language_of_its_card_and_so_has_what_is_trained_from_it(stated, language, tmp_path):
    """An unquoted `no` is false in YAML, and no code."""
    card(tmp_path / "README.md", language=stated, license="mit")
    start = start_of(str(tmp_path))
    assert start.language == language
    record = RunRecord(**RUN, start=start)
    (tmp_path / "run.json").write_text(record.to_json())
    assert RunRecord.read(tmp_path) == record
    assert metadata("user/name", record, Licence("mit"), None).language == language


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


# --- What the Hub takes ---


def fresh(run=None, licence=Licence(), has_code=False, **given):  # noqa: B008
    results = {"probe_after_5shot_accuracy": 0.5, "probe_after_accuracy": 0.7}
    data = metadata("user/name", run, licence, model_index({}, results, []), has_code)
    for key, value in given.items():
        setattr(data, key, value)
    return f"---\n{data}\n---\ntext\n"


def test_the_hub_takes_every_committed_card():
    cards = sorted((ROOT / "model_cards").glob("*/README.md"))
    assert len(cards) >= 5
    assert {path.parent.name: problems(path.read_text(encoding="utf-8")) for path in cards} == {
        path.parent.name: [] for path in cards
    }


@pytest.mark.parametrize("licence", [Licence(), Licence("mit"), Licence(UNKNOWN), Licence("Our Own 1.0")])
@pytest.mark.parametrize("base", [None, "bert-base-uncased", "user/name", ["a/b", "c/d"], "/somewhere/on/a/disk"])
def test_the_hub_takes_every_card_that_is_written(licence, base):
    """Whatever the start's card says of its licence and its own start."""
    run = RunRecord(**RUN, options={"corpus": "user/data:en"}, start=Start(base, licence))
    card = fresh(run, licence, language=["en", "deu"])
    assert problems(card) == []
    data = front_matter(card)
    assert data.get("base_model") == (None if base and base[0] == "/" else base)
    assert data["datasets"] == ["user/data"]
    (example,) = data["widget"]
    assert len(example["sentences"]) == 3
    assert "widget" not in front_matter(fresh(run, licence, has_code=True))


def test_a_licence_that_is_no_identifier_keeps_its_name():
    assert as_the_hub_takes_it(Licence("Our Own 1.0")) == Licence("other", "Our Own 1.0")
    kept = [Licence(), Licence("other", "odd", "https://a.b"), *map(Licence, sorted(LICENCES - {"other"}))]
    assert list(map(as_the_hub_takes_it, kept)) == kept


def test_a_base_model_that_is_a_path_is_left_out_with_a_warning(caplog):
    assert valid_names(["user/name", "bert-base-uncased"]) == ["user/name", "bert-base-uncased"]
    assert not caplog.text
    assert valid_names(["user/name", "../outputs/mine"]) is None
    assert "is no name on the Hub: the card names none" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"license": "apache"}, "license 'apache' is not among the Hub's"),
        ({"license": "other"}, "license_name is for `license: other`"),
        ({"license": "mit", "license_name": "MIT"}, "license_name is for `license: other`"),
        ({"language": "english"}, "language 'english' is no code"),
        ({"language": ["en", "xx"]}, "language 'xx' is no code"),
        ({"base_model": "/outputs/mine"}, "base_model '/outputs/mine' is no name"),
        ({"datasets": ["a/b/c"]}, "datasets 'a/b/c' is no name"),
        ({"pipeline_tag": "embedding"}, "pipeline_tag 'embedding' is no task"),
        ({"tags": ["a", 1]}, "tags are not all strings"),
        ({"widget": [{"text": "a"}]}, "is no example of sentence similarity"),
    ],
)
def test_the_rules_refuse(given, said):
    (problem,) = problems(fresh(**given))
    assert said in problem


def test_the_rules_refuse_results_without_names_or_numbers():
    card = fresh()
    assert problems(card) == []
    for right, wrong in (
        ("value: 0.7", "value: high"),
        ("type: probe", "type: null"),
        ("- type: accuracy", "- type: ''"),
    ):
        assert right in card
        assert problems(card.replace(right, wrong)) != [], wrong
