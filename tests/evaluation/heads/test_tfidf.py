"""TF-IDF: its vocabulary is that of the training part."""

from docsplit.evaluation.heads.tfidf import tfidf_features


def test_tfidf_vocabulary_is_that_of_the_training_part():
    train, test, other = tfidf_features(["an oven", "a ship ship"], ["an anchor"], ["ship"])
    assert train.shape == (2, 3)
    assert (test.nnz, other.nnz) == (1, 1)
