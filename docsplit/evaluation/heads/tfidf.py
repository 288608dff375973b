"""TF-IDF, the baseline everyone should have to beat. It stands among the encoders under the name `TFIDF`."""

import logging
from typing import Any

from scipy.sparse import csr_matrix

from docsplit.data.words import tfidf_counter

logger = logging.getLogger(__name__)

TFIDF = "tfidf"


def tfidf_features(train_texts: list[str], *others: list[str]) -> tuple[Any, ...]:
    """Return sparse features (N, V) of each list of texts; the vocabulary is that of the whole training part.

    Where no training text has a word, there is a single feature, which is zero.
    """
    counter = tfidf_counter()
    try:
        train = counter.fit_transform(train_texts)
    except ValueError:  # its only error for texts
        logger.warning(f"None of the {len(train_texts):,} texts has a word that TF-IDF counts: its features are zero.")
        return tuple(csr_matrix((len(texts), 1)) for texts in (train_texts, *others))
    return train, *(counter.transform(texts) for texts in others)
