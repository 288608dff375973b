"""TF-IDF: its words are those of BM25, its vocabulary that of the training part."""

import pytest

from docsplit.evaluation.analysis.clustering import tfidf_svd
from docsplit.evaluation.heads.tfidf import tfidf_features


def test_tfidf_vocabulary_is_that_of_the_training_part():
    train, test, other = tfidf_features(["an oven", "a ship ship"], ["an anchor"], ["ship"])
    assert train.shape == (2, 3)
    assert (test.nnz, other.nnz) == (1, 1)


def test_words_are_those_of_bm25_in_chinese_too():
    """scikit-learn's own pattern takes a clause for one word: the test texts would have none that is known."""
    train = ["今天天气很好,我们去海边。", "股票价格下跌了,投资者很担心。"]
    of_train, of_test = tfidf_features(train, ["海边的天气", "投资股票", "a ship"])
    assert (of_test @ of_train.T).toarray().argmax(axis=1)[:2].tolist() == [0, 1]
    assert (of_test @ of_train.T).toarray().min(axis=1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("word", ["\N{SNOWFLAKE}", "x y", "ship"])
def test_texts_without_words_or_with_one_have_features(word, caplog):
    train, test = tfidf_features([word] * 5, ["a ship", ""])
    assert (train.shape, test.shape) == ((5, 1), (2, 1))
    assert (train.nnz, test.nnz) == ((5, 1) if word == "ship" else (0, 0))
    assert tfidf_svd({"train": train, "test": test})["test"].tolist() == [[float(word == "ship")], [0.0]]
    assert ("zero" in caplog.text) == (word != "ship")
