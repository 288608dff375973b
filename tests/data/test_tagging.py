"""Tags of a pipeline that the tests build: words, lemmas and where they stand; and pipelines that cannot be used."""

import logging

import pytest
import spacy

from docsplit.data import tagging
from docsplit.data.tagging import load_tagger, tag


@pytest.fixture(scope="module")
def tagger(spacy_pipeline):
    return load_tagger(str(spacy_pipeline))


def test_words_lemmas_and_places(tagger, monkeypatch):
    """Of many texts in their order."""
    monkeypatch.setattr(tagging, "BATCH_TEXTS", 2)
    text = "The ships  sail\nto Dover, cold."
    empty, *others, tags = tag(tagger, ["", "The", "The ship", text])
    assert [tagged.spans.tolist() for tagged in (empty, *others)] == [[], [[0, 3]], [[0, 3], [4, 8]]]
    assert [text[start:end] for start, end in tags.spans] == ["The", "ships", "sail", "to", "Dover", ",", "cold", "."]
    assert tags.lemmas == ["x", "ship", "sail", "x", "dover", ".", "cold", "."]  # lower-cased
    assert tags.parts_of_speech == ["ADP", "NOUN", "VERB", "ADP", "PROPN", "PUNCT", "ADJ", "PUNCT"]


def test_an_overlong_word_is_left_out_counted_and_moves_nothing(tagger, caplog):
    text = f"The {'a' * 5000} ship"
    with caplog.at_level(logging.WARNING):
        (tags,) = tag(tagger, [text])
    assert [text[start:end] for start, end in tags.spans] == ["The", "ship"]
    assert "in 1 documents" in caplog.text


def test_a_pipeline_that_cannot_tag_is_refused(tmp_path):
    with pytest.raises(ValueError, match="python -m spacy download en_core_nothing"):
        load_tagger("en_core_nothing")
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(tmp_path / "splitter")
    with pytest.raises(ValueError, match="has no tagger"):
        load_tagger(str(tmp_path / "splitter"))
    nlp.add_pipe("attribute_ruler")
    nlp.to_disk(tmp_path / "empty")
    with pytest.raises(ValueError, match="gave no word a part of speech"):
        list(tag(load_tagger(str(tmp_path / "empty")), ["The ship."]))
