"""Where adapting may fail: sets of the study of adaptation with another corpus to adapt on, or another question.

python -m benchmarks.studies.adaptation.limits --data "20news, 100 documents" ...    # the options of its step
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.studies.adaptation import step
from benchmarks.studies.adaptation.sets import SETS, DataSet, classes_of, news
from docsplit.data.segmentation import load_sentence_splitter

COPIES = 5  # of each document, each without one of its sentences
BEGINNING = 400  # characters, which 128 tokens hold
Corpus = Callable[[list[str], Path, int], list[str]]  # of the set's own, the data's folder and the size


def drawn(corpus: list[str], count: int) -> list[str]:
    """Draw documents of a corpus, which may be ordered by class; a smaller draw is part of a larger one."""
    return [corpus[row] for row in np.random.default_rng(0).permutation(len(corpus))[:count]]


def near_duplicates(corpus: list[str], data_dir: Path, size: int) -> list[str]:
    """Return fewer documents, each several times without one of its sentences, at random; short ones stay whole."""
    generator, split, copies = np.random.default_rng(0), load_sentence_splitter(), []
    for text in drawn(corpus, size // COPIES):
        sentences = split(text)
        for left_out in generator.permutation(len(sentences))[:COPIES] if len(sentences) > 1 else [-1]:
            copies.append(" ".join(sentence for row, sentence in enumerate(sentences) if row != left_out))
    return copies


def mixed(corpus: list[str], data_dir: Path, size: int) -> list[str]:
    """Take the same number of documents of each set, this one's among them."""
    share = size // len(SETS)
    others = [SETS[name](data_dir, "test", share).corpus for name in ("python_docs", "aan", "cranfield", "ecthr")]
    return [text for texts in (corpus, *others) for text in drawn(texts, share)]


CORPORA: dict[str, Corpus] = {
    "20news, 100 documents": lambda corpus, data_dir, size: drawn(corpus, 100),
    "20news, near-duplicates": near_duplicates,
    "20news, five fields mixed": mixed,
    "20news, documents of another field": lambda corpus, data_dir, size: SETS["aan"](data_dir, "test", size).corpus,
}


def _with_corpus(corpus_of: Corpus) -> Callable[[Path, str, int], DataSet]:
    def load(data_dir: Path, part: str, size: int) -> DataSet:
        data = SETS["20news"](data_dir, part, size)
        return replace(data, corpus=corpus_of(data.corpus, data_dir, size))

    return load


def _asking(data_dir: Path, part: str, size: int) -> DataSet:
    """Label posts by form in place of topic: whether the beginning of a post has a question mark."""
    split = news(data_dir, size)
    train, test = (
        np.array(["?" in text[:BEGINNING] for text in texts], dtype=np.int64)
        for texts in (split.train_texts, split.test_texts)
    )
    return classes_of(replace(split, train_labels=train, test_labels=test, class_names=["no", "yes"]), part)


LIMITS = {name: _with_corpus(corpus_of) for name, corpus_of in CORPORA.items()} | {"20news, asking or not": _asking}


if __name__ == "__main__":
    SETS.update(LIMITS)
    step.main()
