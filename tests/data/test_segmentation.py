"""Sentence splitters: nothing is lost, linear time, and a quality that is measured and may not fall."""

import json
import re
import unicodedata
from pathlib import Path

import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st

from docsplit.data.passages import LONGEST_SENTENCE, count_words
from docsplit.data.segmentation import DEFAULT_SPLITTER, clean_text, load_sentence_splitter

BUILT_IN = ["rules", "sentencizer"]
CASES = json.loads((Path(__file__).parent / "sentence_cases.json").read_text(encoding="utf-8"))

# Words, layout and punctuation that meet the branches of the splitters far more often than random characters do.
CHARACTERS = st.sampled_from("abAZ19.!?…。！」\"'”’()[]*_`:,-\n \t\u3000\xa0\x0b")
WORDS = st.sampled_from(["Dr", "e.g", "U.S", "No", "The", "word", "Word", "x" * 600])
LAYOUT = st.sampled_from(
    ["\n\n", "\n- ", "\n1. ", "\n(a) ", "\n>>> ", "\n.. ", "\nx : int", "\nArgs:\n", "\n---\n", ". . ."]
)
TEXTS = st.lists(CHARACTERS | WORDS | LAYOUT, max_size=60).map("".join) | st.text(max_size=200)


def without_white_space(text: str) -> str:
    return "".join(text.split())


def score(splitter_name: str, cases: list[dict]) -> int:
    split = load_sentence_splitter(splitter_name)
    return sum(split(case["text"]) == case["sentences"] for case in cases)


# --- invariants ---


@given(st.text() | st.text(st.characters(categories=["Cc", "Cs", "Lu"])))
def test_clean_text_leaves_no_control_character_or_surrogate_and_merges_no_words(text):
    cleaned = clean_text(text)
    cleaned.encode("utf-8")  # raises on a surrogate
    assert not [char for char in cleaned if unicodedata.category(char) == "Cc" and char not in "\t\n\r"]
    assert "\r\n" not in cleaned or "\r\r\n" in text
    words = re.findall(r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]+", text)
    assert [unicodedata.normalize("NFC", word) for word in words] == cleaned.split()
    assert clean_text("one\x07two\x1b\x7fthree\r\n\ud83d\ude00") == "one two  three\n  "


@pytest.mark.parametrize("name", BUILT_IN)
@settings(deadline=None, max_examples=150)
@given(TEXTS)
def test_sentences_are_stripped_stretches_of_the_text_and_lose_nothing_but_white_space(name, text):
    sentences, position = load_sentence_splitter(name)(text), 0
    for sentence in sentences:
        assert sentence == sentence.strip() != ""
        position = text.index(sentence, position) + len(sentence)
    assert without_white_space("".join(sentences)) == without_white_space(text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("unit", ["word and other\n", ".", "a. ", '"', '" ', "1", '."', "\na: ", "(", "\n--- "])
def test_long_texts_are_split_in_time(name, unit):
    """A blink, where anything quadratic in the length would take minutes."""
    text = unit * (200_000 // len(unit))
    assert without_white_space("".join(load_sentence_splitter(name)(text))) == without_white_space(text)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_text_without_stops_has_more_than_one_sentence(name):
    """So that a transcript has two halves; passages and halves are cut in one place."""
    for text in ("so we sail and then we eat " * 500, "เรือแล่นข้ามทะเลสาบ" * 100, "x" * 20_000):
        sentences = load_sentence_splitter(name)(text)
        assert without_white_space("".join(sentences)) == without_white_space(text)
        assert max(map(count_words, sentences)) <= LONGEST_SENTENCE
        assert len(sentences) > 5


# --- quality ---


def test_rules_keep_their_measured_score_and_beat_the_sentencizer():
    assert score("rules", CASES) >= 108
    assert score("rules", CASES) > 1.5 * score("sentencizer", CASES)
    assert DEFAULT_SPLITTER == "rules"


PROSE = [
    ["Dr. Smith met J. R. R. Tolkien in the U.S. Army."],  # titles and initials
    ["He likes pears, etc.", "Then he left."],  # etc. ends a sentence before a capital
    ["He left the U.S.", "The war was over."],  # and U.S. before a frequent first word
    ["Is it No. 5?", "No.", "Is it Fig. 2 of v2.0.1, i.e. 3.14?"],
    ["Call np.ndarray.sum in a.py.", "See http://a.org/b.html?c=d."],
    ["Call this.", ":func:`f` does."],
    ["What?!", "He waited... and waited...", "Nothing."],
    ['He said, "I left."', "(She had left.)", "“Well.”", "Then..."],
    ["a machine was tested .", "it works, e.g. well ."],  # a text without capitals
    ["今天天气很好。", "好吗？", "「好。」"],
]


@pytest.mark.parametrize("sentences", PROSE)
def test_rules_on_prose(sentences):
    joiner = "" if sentences[0].endswith("。") else " "
    assert load_sentence_splitter("rules")(joiner.join(sentences)) == sentences
    wrapped = joiner.join(sentences).replace(" ", "\n")
    assert [sentence.replace("\n", " ") for sentence in load_sentence_splitter("rules")(wrapped)] == sentences


LAYOUT_KEPT = [
    ["Bring:", "- apples", "- pears\n  or plums", "* nuts"],
    ["1. Open it.", "2. Close it", "(a) softly", "b) slowly"],
    ["Parameters\n----------", "x : int\n    The first.", "*args : Any\n    The rest."],  # numpydoc
    ["Args:", "x (`list[int]`, *optional*): The first.", "y: The second."],  # Google style
    [">>> x.sum()\n3.0", ">>> for y in x:\n...     Print(y)", ".. note:: Done."],
    ["From: a@b.org (A. B.)", "Subject: Re: lunch", "Lines: 5"],
    ["One long\nline."],  # goes on
]


@pytest.mark.parametrize("sentences", LAYOUT_KEPT)
def test_rules_on_layout(sentences):
    split = load_sentence_splitter("rules")
    assert split("\n".join(sentences)) == sentences
    indented = "    " + "\n".join(sentences).replace("\n", "\n    ")
    assert [re.sub(r"\n {4}", "\n", sentence) for sentence in split(indented)] == sentences


# --- spaCy pipelines ---


def test_a_missing_pipeline_names_the_option_and_the_remedy():
    with pytest.raises(ValueError, match="--sentence_splitter 'en_core_web_xyz'") as error:
        load_sentence_splitter("en_core_web_xyz")
    for remedy in ("python -m spacy download en_core_web_xyz", "'rules'", "'sentencizer'"):
        assert remedy in str(error.value)


def test_an_installed_pipeline_runs_its_senter_and_nothing_else(tmp_path):
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "X", "pattern": "sentence"}])
    pipeline.add_pipe("sentencizer")
    senter = pipeline.add_pipe("senter")
    pipeline.initialize()
    # Untrained, the senter would split at random: let it see a boundary at each token.
    senter.model.get_ref("softmax").set_param("b", senter.model.ops.asarray([-9.0, 9.0], dtype="f"))
    pipeline.disable_pipe("senter")  # as in en_core_web_sm
    pipeline.to_disk(tmp_path)
    assert load_sentence_splitter(str(tmp_path))("One sentence.") == ["One", "sentence", "."]
