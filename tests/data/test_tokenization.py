"""Tokenising sentences one by one gives the ids of the joined text, for WordPiece and byte-level BPE."""

import unicodedata

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from docsplit.data import tokenization
from docsplit.data.collators import DocSplitCollator
from docsplit.data.preparation import Segmentation, tokenize_batch
from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.data.tokenization import LONGEST_WORD, tokenize_units, train_pieces, train_wordpiece
from docsplit.data.words import whole_words

TRICKY = [
    'He said "No." Then he left.',
    "'s-Hertogenbosch is a city.",
    "It costs $3.50 (or 2,000 yen)!",
    "\tIndented  text\nover two lines.",
    "naïve café — 日本語 текст",
    "[MASK] and <mask> in a text.",
    "x" * 200 + " long word.",
    "...",
    "42",
]


def joined_ids(tokenizer, units, max_length=10_000):
    return tokenizer(" ".join(units), truncation=True, max_length=max_length)["input_ids"]


def feature_of(tokenizer, units):
    ids = tokenize_units(tokenizer, units)
    feature = {"document_id": 1}
    for name, unit_ids in ids.items():
        feature[name] = np.array([token for unit in unit_ids for token in unit], dtype=np.int64)
        feature[name.replace("input_ids", "unit_lengths")] = np.array([len(unit) for unit in unit_ids])
    return feature


def check_all_joins(tokenizer, units, seed):
    collator = DocSplitCollator(tokenizer, mlm=False, max_seq_length=10_000)
    feature = feature_of(tokenizer, units)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        chosen = rng.random(len(units)) < 0.6
        if chosen.any():
            ours = collator.join(feature, np.repeat(chosen, feature["unit_lengths"])).tolist()
            assert ours == joined_ids(tokenizer, [unit for unit, is_in in zip(units, chosen) if is_in])


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_view_loses_what_the_tokenizer_cuts_and_is_padded_on_the_right(tokenizer, side, monkeypatch):
    monkeypatch.setattr(tokenizer, "truncation_side", side)
    monkeypatch.setattr(tokenizer, "padding_side", "left")
    collator = DocSplitCollator(tokenizer, mlm=False, max_seq_length=20)
    feature = feature_of(tokenizer, TRICKY)
    whole = np.ones(feature["unit_lengths"].sum(), dtype=bool)
    assert collator.join(feature, whole).tolist() == joined_ids(tokenizer, TRICKY, max_length=20)
    assert tokenizer.padding_side == "right"


@settings(max_examples=60, deadline=None)
@given(text=st.text(min_size=1, max_size=200) | st.just(" ".join(TRICKY)), seed=st.integers(0, 1000))
def test_joined_sentences_of_any_text(wordpiece, byte_level_bpe, text, seed):
    for tokenizer in (wordpiece, byte_level_bpe):
        units = load_sentence_splitter()(clean_text(text))
        units = [unit for unit in units if tokenize_units(tokenizer, [unit])["input_ids"][0]]
        if units:
            check_all_joins(tokenizer, units, seed)


def test_a_tokenizer_may_have_no_special_tokens_but_not_leave_out_its_cls(wordpiece):
    """As that of Qwen3 has none, which ends no text."""
    backend = Tokenizer.from_str(wordpiece.backend_tokenizer.to_str())
    backend.post_processor = processors.Sequence([])
    plain = {"tokenizer_object": backend, "pad_token": "[PAD]", "unk_token": "[UNK]"}
    without, text = PreTrainedTokenizerFast(**plain), "a ship. the oven. a tree."
    assert tokenization.special_affixes(without) == ([], [])
    columns = tokenize_batch({"text": [text]}, without, Segmentation())
    feature = {name: values[0] for name, values in columns.items()}
    batch = DocSplitCollator(without, "simcse", 24, mlm=False)([feature])
    assert batch["input_ids"][0, 0].tolist() == without(text)["input_ids"]
    with pytest.raises(ValueError, match="adds no special tokens around a text"):
        tokenization.special_affixes(PreTrainedTokenizerFast(**plain, cls_token="[CLS]"))


def test_one_sentence_is_cut_at_the_word_nearest_the_middle_token(tokenizer):
    sentence = "bread butter oven flour lighthouse sugar"
    first, second = tokenization.cut_in_two(tokenizer, sentence)
    assert f"{first} {second}" == sentence

    def distance(position):
        tokens, before = (
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in (sentence, sentence[:position])
        )
        return abs(len(before) - len(tokens) / 2)

    spaces = [position for position, character in enumerate(sentence) if character == " "]
    assert distance(len(first)) == min(map(distance, spaces))


def test_a_trained_tokenizer_is_cached_under_the_corpus_and_size(corpus, tmp_path):
    first, again, other = (train_wordpiece(corpus, "text", size, tmp_path) for size in (200, 200, 150))
    assert first.get_vocab() == again.get_vocab()
    assert len(list(tmp_path.iterdir())) == 2
    assert len(other) <= 150 < len(first) <= 200
    assert first("Bread BUTTER")["input_ids"] == first("bread butter")["input_ids"]
    assert first.unk_token_id not in first("The ship was in the storm")["input_ids"]
    first.save_pretrained(tmp_path / "saved")
    assert tokenization.load_tokenizer(tmp_path / "saved").get_vocab() == first.get_vocab()
    (tmp_path / "saved" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"5 entries, all of them special tokens: tokenizer\.json .* is missing"):
        tokenization.load_tokenizer(tmp_path / "saved")


@pytest.mark.parametrize("room", [1, 3, 7, 1000])
def test_chunks_fill_the_room_lose_nothing_and_cut_no_word_that_fits(tokenizer, room):
    for text in [*TRICKY, " ".join(TRICKY), "", "   "]:
        (chunks, lengths), *rest = tokenization.cut_into_chunks(tokenizer, [text], room)
        assert not rest
        assert "".join(chunks) == text
        whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        assert sum(lengths) == len(whole["input_ids"])
        assert max(lengths) <= room
        words = whole.word_ids()
        cuts = np.cumsum(lengths)[:-1]
        for start, cut in zip([0, *cuts], cuts):
            if words[cut] == words[cut - 1]:  # within a word, which then begins the chunk and does not fit
                assert words[start] == words[cut]
                assert cut - start == room
            else:  # the next word would not have fitted
                end = next((i for i in range(cut, len(words)) if words[i] != words[cut]), len(words))
                assert end - start > room


@pytest.mark.timeout(60)  # it took more than ten minutes
def test_a_word_of_a_megabyte_does_not_hold_up_the_training(corpus, tmp_path):
    """Words that WordPiece cannot read leave the vocabulary as it is; what punctuation parts is learnt from."""
    anchorages = "+".join(["anchorage"] * 50)
    word = "".join(np.random.default_rng(0).choice(list("abcdefghij"), 300_000))
    odd = [f"{word} {'x' * 101} tide", "y" * 100, f"gull+{anchorages}+{word}"]
    clean = [f"gull {anchorages}", "tide", "y" * 100]
    expected, tokenizer = (
        train_wordpiece(Dataset.from_dict({"text": [*corpus["text"][:], *texts]}), "text", 300, tmp_path / name)
        for name, texts in (("clean", clean), ("long", odd))
    )
    assert set(tokenizer.get_vocab()) >= {"anchorage", "gull"}
    assert {*"".join(tokenizer.get_vocab())} == {*"".join(expected.get_vocab())}
    assert tokenizer.tokenize(f"tide {'x' * 101}")[-1] == "[UNK]"


def test_a_view_that_begins_inside_a_sentence_keeps_its_ids(byte_level_bpe):
    """There is no text whose beginning it is; only a whole sentence takes its initial form."""
    collator = DocSplitCollator(byte_level_bpe, mlm=False)
    feature = feature_of(byte_level_bpe, ["The ship was in the storm.", "It was the captain."])
    ids, first = feature["input_ids"], feature["unit_lengths"][0]
    tokens = np.arange(len(ids))
    for view in (tokens >= 2, (tokens >= first) & (tokens < len(ids) - 1)):
        assert collator.join(feature, view)[1:-1].tolist() == ids[view].tolist()
    assert collator.join(feature, tokens >= first)[1] != ids[first]


@pytest.mark.parametrize(
    "text",
    [
        "Straße naïve İSTANBUL I'm x2 3.14 ½ №5 ships™ get_user_by_id so\u00adft co\u200bop ﬁle",
        "Ο ΛΟΓΟΣ του Σίσυφου",
        "за́мок Мой ѓон",
        "Ի՞նչ հայերեն",
        "שָׁלוֹם סֵפֶר־חָדָשׁ",
        "وَصَلَ كِتَابٌ كتـــاب ٢٠٢٣ می\u200cخواهم",
        "हिन्दी में किताबें १२",
        "தமிழ் எழுத்துக்கள்",
        "বাংলা ভাষা",
        "සිංහල",
        "日本語の文書 サーバー 今天天气",
        "한국어 문서를 책 비",
        "Tiếng Việt",
        "ฝนตก phoneรุ่น ๒๕๖๖",
        "ខ្មែរ",
    ],
)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_pieces_are_of_the_words_that_python_cuts(text, form):
    text = unicodedata.normalize(form, text)
    tokenizer = train_pieces([text] * 5 + ["क"], 5000)
    cut = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]
    whole = [["ฝนตก", "phone", "รุ่น", "2566"], ["ខ្មែរ"]]  # stretches without spaces, which pieces cut by themselves
    assert cut == whole_words(text) or cut in whole
    assert set(tokenizer.encode(text).tokens) == set(cut)  # what five texts have is one piece, with all its signs


def test_stretches_without_spaces_are_cut_into_what_they_share():
    words = ["เรือ", "ทะเล", "คลื่น", "ท่าเรือ", "ลม"]
    rng = np.random.default_rng(0)
    texts = ["".join(rng.permutation(words * 2)) for _ in range(60)]
    tokenizer = train_pieces(texts, 5000)
    first, second = ({*tokenizer.encode(text).tokens} for text in texts[:2])
    assert first & second  # no text is a piece of its own


def test_long_words_are_cut_and_what_no_text_has_is_left_out():
    tokenizer = train_pieces(["a" * 1000, "of a word", "\ud800"], 100)
    assert max(map(len, tokenizer.get_vocab())) <= LONGEST_WORD
    assert "".join(tokenizer.encode("word zß of").tokens) == "wordof"
