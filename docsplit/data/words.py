"""Cut text into words: the same for BM25 and TF-IDF, in evaluations, in training for ranking and in an index."""

import re
from collections.abc import Sequence
from typing import Any

import bm25s
from bm25s.stopwords import STOPWORDS_EN_PLUS

from docsplit.data.passages import HAN_AND_KANA

# bm25s's own pattern is \b\w\w+\b, which takes a clause of Chinese or Japanese for one word.
TOKEN_PATTERN = rf"(?u)[{HAN_AND_KANA}]|[^\W{HAN_AND_KANA}]{{2,}}"


def tokenize(texts: Sequence[str], return_ids: bool = True, show_progress: bool = False) -> Any:
    """Cut texts as bm25s does (lower case, two letters or more, no English stop-words), Han and kana by characters.

    Thai, Lao, Khmer and Burmese put no spaces between words either: a run of these stays one word.

    Args:
        return_ids: return bm25s's `Tokenized` (numbers and vocabulary); False: lists of words.
    """
    return bm25s.tokenize(
        list(texts), token_pattern=TOKEN_PATTERN, stopwords="en", return_ids=return_ids,
        show_progress=show_progress, leave=False,
    )  # fmt: skip


def tfidf_counter(**options: Any) -> Any:
    """Return scikit-learn's TF-IDF, unfitted, of the words that `tokenize` cuts; stop-words stay."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(token_pattern=TOKEN_PATTERN, sublinear_tf=True, **options)


def words_in(text: str) -> set[str]:
    """Return the distinct words of a text, stop-words too."""
    return set(re.findall(TOKEN_PATTERN, text.lower()))


def telling_words(words: Sequence[str]) -> list[str]:
    """Return the distinct words of a query without those that say little (how, what, do); all if no other is left.

    BM25 counts the others too; this is for people.
    """
    distinct = list(dict.fromkeys(words))
    return [word for word in distinct if word not in STOPWORDS_EN_PLUS] or distinct
