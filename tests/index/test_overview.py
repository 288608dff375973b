"""The overview of an index, against slow versions."""

from collections import Counter

import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from docsplit.index import changes
from docsplit.index import overview as index_overview
from docsplit.index.changes import build, delete
from docsplit.index.index import Index
from docsplit.index.overview import NAMING_WORDS, _names, clusters, duplicates
from docsplit.index.segments import query_words
from tests.index.conftest import ENCODER, WORDS


def test_names_are_those_of_a_count_word_by_word(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "SEGMENT_DOCUMENTS", 30)  # several segments
    build(tmp_path, documents, ENCODER, WORDS)
    delete(tmp_path, [documents[5].id])
    index = Index(tmp_path)
    texts = [segment.texts[row] for segment, row in index.documents()]
    labels = np.random.default_rng(0).integers(3, size=len(texts))
    labels[labels == 2] = 1
    labels[7] = 2  # a group of one document
    counts, having = [Counter() for _ in range(3)], [Counter() for _ in range(3)]
    for text, label in zip(texts, labels):
        words = [word for word in query_words(text) if word not in ENGLISH_STOP_WORDS | set(STOPWORDS_EN)]
        counts[label].update(words)
        having[label].update(set(words))
    for label in range(3):
        fewest = min(2, int((labels == label).sum()))
        for group in range(3):
            enough = min(2, int((labels == group).sum()))
            counts[group] = Counter({word: n for word, n in counts[group].items() if having[group][word] >= enough})
        assert fewest == (1 if label == 2 else 2)
    mean = sum(sum(cluster.values()) for cluster in counts) / 3
    for label, names in enumerate(_names(index.segments, labels, 3)):
        total = sum(counts[label].values())
        weights = {word: cluster / total * np.log1p(mean / sum(label_counts[word] for label_counts in counts))
                   for word, cluster in counts[label].items()}  # fmt: skip
        best = sorted(weights.values(), reverse=True)[:NAMING_WORDS]
        np.testing.assert_allclose([weights[word] for word in names], best)


def test_duplicates_are_those_of_all_pairs(documents, tmp_path, monkeypatch, caplog):
    build(tmp_path, documents, ENCODER, WORDS)
    index = Index(tmp_path)
    vectors, ids = index.document_vectors(), [segment.ids[row] for segment, row in index.documents()]
    pairs = [(float(vectors[a] @ vectors[b]), a, b) for a in range(len(ids)) for b in range(a + 1, len(ids))]
    threshold = float(np.median([score for score, _, _ in pairs]))
    expected = [(ids[a], ids[b]) for score, a, b in sorted(pairs, key=lambda scored: -scored[0]) if score >= threshold]
    monkeypatch.setattr(index_overview, "CHUNK_VALUES", 7 * len(ids))  # rows at a time
    hits = duplicates(index, threshold)
    assert len(hits) > 100
    assert {(pair.id, pair.other) for pair in hits} == set(expected)
    scores = [pair.score for pair in hits]
    assert scores == sorted(scores, reverse=True)
    assert not caplog.messages
    monkeypatch.setattr(index_overview, "MOST_PAIRS", 20)  # cut off several times on the way
    assert duplicates(index, threshold) == hits[:20]
    assert f"{len(hits)} pairs: the 20 most similar are kept" in caplog.text.replace(",", "")


def test_more_groups_than_documents_are_refused(documents, tmp_path):
    build(tmp_path, documents[:3], ENCODER, WORDS)
    assert [group.size for group in clusters(Index(tmp_path), 3)] == [1, 1, 1]
    with pytest.raises(ValueError, match="4 groups of 3 documents"):
        clusters(Index(tmp_path), 4)
