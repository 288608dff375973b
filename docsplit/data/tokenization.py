"""Turn sentences into token ids that can be joined in any order.

The ids of a view equal `tokenizer(" ".join(its sentences))`.

Sentences are tokenised once and views are drawn in every epoch by joining ids. For WordPiece and SentencePiece that is
exact as it stands. Byte-level BPE (RoBERTa, Longformer, ModernBERT) encodes "It" at the start of a text and " It"
after another sentence differently, so each sentence is stored in both forms: twice the disk, for an exact view.
"""

import itertools
import logging
import re
import sys
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase

from docsplit.data.segmentation import clean_text
from docsplit.data.words import APART, HIDDEN, LETTERS, RUNS
from docsplit.modeling.checked_files import load_tokenizer
from docsplit.runtime.files import build_once

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

LONGEST_WORDPIECE = 100  # characters; WordPiece reads a longer word as [UNK]
LONGEST_WORD = 100  # characters, of which pieces are made: merges take time quadratic in it
RAREST_PIECE = 5  # times that it occurs: else whole stretches without spaces, which occur once, become pieces
_TOKENIZING = threading.RLock()


def special_affixes(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Find the ids that the tokenizer puts before and after a single text: ([CLS], [SEP]) for BERT.

    A decoder's may put none; then a view is its tokens alone, which is logged.

    Raises:
        ValueError: if the tokenizer has a [CLS], and does not put it there.
    """
    content = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(content) + 1):
        if whole[start : start + len(content)] == content and len(whole) > len(content):
            return whole[:start], whole[start + len(content) :]
    if whole == content and tokenizer.cls_token_id is None:
        logger.info(f"The tokenizer {tokenizer.name_or_path!r} adds no special tokens: a view has its tokens alone.")
        return [], []
    raise ValueError(
        f"The tokenizer {tokenizer.name_or_path!r} adds no special tokens around a text ({whole} for 'a'): choose the "
        "tokenizer of a masked language model with --tokenizer_name."
    )


def prompt_affix(tokenizer: PreTrainedTokenizerBase, prompt: str) -> tuple[list[int], bool]:
    """Find the ids of a prompt before a text, and whether the text after it reads as after another unit.

    `tokenizer("passage: It")` is that of "passage:" and " It", not of "passage: " and "It". A prompt that runs into
    the word after it has no ids of its own; it gets those that it has alone, and a warning.
    """
    if not prompt:
        return [], False
    word, whole = "It", _plain(tokenizer, [f"{prompt}It"])[0]
    for text, after in ((prompt.rstrip(" "), _continued), (prompt, _plain)):
        ids = _plain(tokenizer, [text])[0]
        if ids + after(tokenizer, [word])[0] == whole:
            return ids, after is _continued
    logger.warning(f"The prompt {prompt!r} runs into the word after it: in views it has the tokens that it has alone.")
    return _plain(tokenizer, [prompt])[0], False


def has_initial_form(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a word is encoded differently at the start of a text than after a space (byte-level BPE)."""
    return tokenizer("It", add_special_tokens=False)["input_ids"] != _continued(tokenizer, ["It"])[0]


def tokenize_units(tokenizer: PreTrainedTokenizerBase, units: list[str]) -> dict[str, list[list[int]]]:
    """Tokenise each unit without special tokens: as it reads after another unit and, where different, at the start.

    Returns: `input_ids`, and `initial_input_ids` if `has_initial_form(tokenizer)`; each one list a unit.
    """
    ids = {"input_ids": _continued(tokenizer, units)}
    return ids | ({"initial_input_ids": _plain(tokenizer, units)} if has_initial_form(tokenizer) else {})


def _plain(tokenizer: PreTrainedTokenizerBase, units: list[str]) -> list[list[int]]:
    if not units:
        return []
    return tokenizer(units, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]


def _continued(tokenizer: PreTrainedTokenizerBase, units: list[str]) -> list[list[int]]:
    return _plain(tokenizer, [f" {unit}" for unit in units])


def cut_in_two(tokenizer: PreTrainedTokenizerBase, sentence: str) -> list[str]:
    """Cut a document of one sentence at the token nearest its middle that starts a word.

    Returns: two strings, or the sentence alone if no token but the first starts a word.
    """
    offsets = tokenizer(sentence, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
    starts = []
    for index, (start, end) in enumerate(offsets):
        start = end - len(sentence[start:end].lstrip())  # some tokenizers count the space before a word to the word
        if 0 < start < end and sentence[start - 1].isspace():
            starts.append((abs(2 * index - len(offsets)), start))
    if not starts:
        return [sentence]
    _, position = min(starts)
    return [sentence[:position].rstrip(), sentence[position:]]


def cut_into_chunks(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_tokens: int
) -> Iterator[tuple[list[str], list[int]]]:
    """Cut texts into chunks of at most `max_tokens` tokens (special ones not counted) that end where a word ends.

    A word with more tokens than that is cut. Chunks follow one another without a gap, white space included.

    Yields: for each text its chunks and their numbers of tokens; an empty text is one chunk of 0 tokens.
    """
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        words, ends = encoded.word_ids(), [end for _, end in encoded["offset_mapping"]]
        cuts = [0]  # indices of tokens
        while len(words) - cuts[-1] > max_tokens:
            latest = cuts[-1] + max_tokens
            word_start = latest
            while word_start > cuts[-1] and words[word_start] == words[word_start - 1]:
                word_start -= 1
            cuts.append(word_start if word_start > cuts[-1] else latest)
        cuts.append(len(words))
        edges = [0, *(ends[cut - 1] for cut in cuts[1:-1]), len(text)]
        chunks = [text[start:end] for start, end in itertools.pairwise(edges)]
        yield chunks, [end - start for start, end in itertools.pairwise(cuts)]


def train_wordpiece(dataset: "Dataset", text_column: str, vocab_size: int, cache_dir: Path) -> Any:
    """Train an uncased WordPiece tokenizer, as BERT's, on the texts of a dataset.

    Training one twice gives other ids, so it is cached under the corpus fingerprint and the size; a resumed run takes
    its tokenizer from its checkpoint. Words that are too long for WordPiece are left out: training takes time
    quadratic in the length of a word.

    Args:
        dataset: the corpus; rows whose text is no string are passed over.
        vocab_size: upper bound on the number of ids, special tokens included.
        cache_dir: where trained tokenizers are kept.
    """

    def build(directory: Path) -> None:
        logger.info(f"Training a WordPiece tokenizer of {vocab_size:,} ids on {len(dataset):,} documents")
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, special_tokens=special_tokens, limit_alphabet=1000, show_progress=False
        )
        long_stretch = re.compile(rf"(?<!\S)\S{{{LONGEST_WORDPIECE + 1},}}")

        def shortened(stretch: re.Match[str]) -> str:
            normal = normalizer.normalize_str(stretch[0])  # the tokenizer itself is locked while it trains
            words = (word for word, _ in pre_tokenizer.pre_tokenize_str(normal))
            return " ".join(word for word in words if len(word) <= LONGEST_WORDPIECE)

        def texts() -> Iterator[list[str]]:
            for batch in dataset.select_columns([text_column]).iter(batch_size=1000):
                strings = [text for text in batch[text_column] if isinstance(text, str)]
                yield [long_stretch.sub(shortened, clean_text(text)) for text in strings]

        tokenizer.train_from_iterator(texts(), trainer, length=len(dataset))
        if tokenizer.get_vocab_size() == len(special_tokens):
            raise ValueError(f"There are no words in the column {text_column} to train a tokenizer on.")
        BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=True).save_pretrained(directory)

    from datasets.fingerprint import Hasher  # tokenised documents are trained on without it

    key = Hasher.hash((dataset._fingerprint, text_column, vocab_size))
    return load_tokenizer(build_once(cache_dir / f"wordpiece-{vocab_size}-{key}", build))


def train_pieces(texts: Sequence[str], size: int) -> Tokenizer:
    """Train byte-pair pieces of the words of texts, as `docsplit.data.words.whole_words` cuts and writes these.

    All scripts keep their vowel signs and accents. Where words have no spaces between them, pieces are of whole
    stretches of letters. Letters that no text has are left out of what is read.

    Args:
        size: the most pieces.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(_pattern(APART), " "),
            normalizers.NFKC(),
            *(normalizers.Replace(letter, usual) for letter, usual in LETTERS.items()),
            normalizers.Replace(_pattern(HIDDEN), ""),
            normalizers.NFKC(),  # again, for an accent may have stood behind what is left out
            *(normalizers.Replace(Regex(f"[{others}]"), digit) for digit, others in _other_digits().items()),
            normalizers.Replace("\u0130", "i"),
            normalizers.Replace(Regex(r"(?<=\p{L})\u03a3(?!\p{L})"), "\u03c2"),  # the sigma at the end of a word
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_pattern(RUNS), "removed", invert=True),
            pre_tokenizers.Split(Regex(f".{{1,{LONGEST_WORD}}}"), "isolated"),
        ]
    )
    whole = (text.encode("utf-8", "replace").decode() for text in texts)  # a lone surrogate is no text
    tokenizer.train_from_iterator(
        whole, trainers.BpeTrainer(vocab_size=size, min_frequency=RAREST_PIECE, show_progress=False), len(texts)
    )
    return tokenizer


@cache
def _other_digits() -> dict[str, str]:
    """Return for each of the digits 0-9 those of other scripts."""
    digits: dict[str, str] = defaultdict(str)
    for character in map(chr, range(128, sys.maxunicode)):
        if unicodedata.category(character) == "Nd":
            digits[str(unicodedata.digit(character))] += character
    return digits


def _pattern(pattern: Any) -> Regex:
    """Write a pattern of Python for tokenizers, which knows other escapes of characters."""
    return Regex(
        re.sub(r"\\(?:u(.{4})|U(.{8}))", lambda escape: chr(int(escape[1] or escape[2], 16)), pattern.pattern)
    )
