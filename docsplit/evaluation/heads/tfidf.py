"""TF-IDF, the baseline everyone should have to beat. It stands among the encoders under the name `TFIDF`."""

from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer

TFIDF = "tfidf"


def tfidf_features(train_texts: list[str], *others: list[str]) -> tuple[Any, ...]:
    """Return sparse features (N, V) of each list of texts; the vocabulary is that of the whole training part."""
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    train = vectorizer.fit_transform(train_texts)
    return train, *(vectorizer.transform(texts) for texts in others)
