"""An evaluation of one's own: documents are ranked for queries by TF-IDF of words and of characters.

    python examples/custom_evaluation.py

An evaluation states what it measures, as a `Task`, and returns a `Result` for each encoder: a numerator and
denominator for every test item (`ItemScores`). Rows (a data frame), intervals, paired tests, the report and
results.json need no code. An evaluation of encoders is an `Evaluation` of `docsplit.evaluation.compare`: start from
`run_aan_retrieval.py` and `docsplit/evaluation/links.py`.
"""

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import ndcg_score

from docsplit.data.corpora import load_corpus
from docsplit.data.sets.labelled import split_labelled
from docsplit.evaluation.results.bootstrap import ItemScores
from docsplit.evaluation.results.report import Report, comparisons, rows, write_comparison
from docsplit.evaluation.results.result import Result, Task

RANKING = Task("text-retrieval", {"ndcg": "nDCG@10"}, main="ndcg", columns=["ndcg"], items="queries")


def measure(name, queries, candidates, relevant):
    """Return nDCG@10 of each query; relevant (queries, documents) is True where both have one label."""
    vectorizer = TfidfVectorizer(analyzer=name).fit(candidates)
    scores = (vectorizer.transform(queries) @ vectorizer.transform(candidates).T).toarray()
    ndcg = np.array([[ndcg_score(*one, k=10) for one in zip(relevant[:, None], scores[:, None])]])  # (runs, queries)
    return Result(task=RANKING, encoder=name, head="cosine", measured={"ndcg": ItemScores(ndcg, np.ones_like(ndcg))})


if __name__ == "__main__":
    split = split_labelled(load_corpus("tests/data/documents.jsonl"), "text")
    relevant = split.test_labels[:, None] == split.train_labels
    results = [measure(name, split.test_texts, split.train_texts, relevant) for name in ("word", "char")]
    report = Report(RANKING, rows(results), comparisons(results), heading="Documents ranked")
    print(write_comparison("outputs/ranking", report))
