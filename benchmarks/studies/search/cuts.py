"""Can the score of a hit be cut at? Halves of an index's own documents as questions, with an answer and without.

    python -m benchmarks.studies.search.cuts --data_dir DIR --encoder sentence-transformers/all-MiniLM-L6-v2

DIR has the folders scifact, cacm, pubmedqa and qmsum, in BEIR's layout.

Each set is an index of 1,500 documents (PubMedQA: 1,000), all that answer 250 of its questions among them (CACM: 52).

Calibration: of 500 documents of an index that have sentences enough, one random half asks, cut to 5 to 30 words. It
asks once with the other half in the index, which never has the question's own words, and once with none of the
document. Logistic regression on the first hit of the hybrid gives a probability from its cosine, the share of the
question's words that it has, and ln(1 + BM25). `answer`: that the index has an answer. `hit`: that the first hit is
the other half.

Tested by real questions, which no fit saw: the set's own; its own without the documents that answer (`topic`); and
those of the other sets, which have no answer here. The probability would be kept if it were nowhere below the cosine,
and off by at most 0.05. It is not: halves ask harder than people do, what is right for one set misleads on another
(QMSum), and how many questions have no answer differs from user to user.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.studies.search.report import markdown_of
from docsplit.data.fusion import LOWEST, WEIGHT, sum_of_scores
from docsplit.data.passages import split_sentences
from docsplit.data.readers.base import Document
from docsplit.data.sets.rankings import load_collection
from docsplit.data.sets.set_arguments import RankingArguments
from docsplit.data.words import Stems
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.index.changes import add, build
from docsplit.index.index import FUSED, IndexReader, bm25
from docsplit.runtime.files import ROOT, cache_directory, write_text
from docsplit.runtime.vectors import best_of

SETS = ("scifact", "cacm", "pubmedqa", "qmsum")
DOCUMENTS, QUESTIONS, HALVES = 1500, 250, 500
FEWEST_WORDS, CUT = 30, (5, 30)  # of a document that is halved; of a question
FEATURES = {"cosine": [0], "cosine, words": [0, 1], "cosine, words, BM25": [0, 1, 2]}
DRAWS, BINS = 1000, 10
LEAST = (0.3, 0.4, 0.5, 0.6)  # cosines
COSINE, ERROR = "raw cosine", "calibration error"


@dataclass
class Asked:
    """The first hits of some questions: their ids, and what is known of each (Q, 3)."""

    ids: list[str]
    features: np.ndarray


def first_hit(reader: IndexReader, vector: np.ndarray, question: str) -> tuple[str, list[float]]:
    """Return the id of the hybrid's first hit, its cosine, the share of the question's words in it, and its BM25."""
    stems = Stems(reader.manifest.language)
    by_words = bm25(reader.segments, stems.of(question))
    similarities = reader.similarities(vector, FUSED, by_words, is_hybrid=True)
    number = best_of(sum_of_scores(similarities, by_words, WEIGHT, LOWEST["cosine"]), 1)[0]
    segment, row = reader.place(number)
    content = stems.content_words(question)
    share = sum(segment.has(stem, row) for stem in content.values()) / max(len(content), 1)
    nearest = (segment.vectors[segment.passages_of(row)] @ vector).max()
    return segment.ids[row], [float(nearest), share, float(np.log1p(by_words[number]))]


def ask(readers: Iterable[IndexReader], vectors: np.ndarray, questions: list[str]) -> Asked:
    """Ask each question of its reader."""
    hits = [first_hit(*pair) for pair in zip(readers, vectors, questions)]
    return Asked([name for name, _ in hits], np.array([features for _, features in hits]))


def halves_of(text: str, rng: np.random.Generator) -> tuple[str, str] | None:
    """Return a question of one random half of a text's sentences, and the other half; None if it has too few."""
    sentences = split_sentences(text)
    if len(sentences) < 2 or len(text.split()) < FEWEST_WORDS:
        return None
    is_asked = rng.permutation(len(sentences)) < len(sentences) / 2
    words = " ".join(np.array(sentences, dtype=object)[is_asked]).split()
    length = min(int(rng.integers(*CUT, endpoint=True)), len(words))
    start = rng.integers(len(words) - length + 1)
    return " ".join(words[start : start + length]), "\n\n".join(np.array(sentences, dtype=object)[~is_asked])


class CalibratedIndex:
    """An index of a set, its questions, and what its own halves say.

    Attributes:
        relevant: ids of the documents that answer each question.
        present, absent: the first hits of the halves, with the other half in the index and without the document.
        is_other_half: whether each first hit of `present` is it.
    """

    def __init__(self, name: str, data_dir: Path, encoder: Encoder, folder: Path):
        ranking, rng = load_collection(RankingArguments(str(data_dir / name))), np.random.default_rng(0)
        kept = rng.permutation(len(ranking.queries))[:QUESTIONS]
        self.name, self.questions = name, [ranking.queries[row] for row in kept]
        grades = [ranking.judgments[ranking.query_ids[row]] for row in kept]
        self.relevant = [{key for key, grade in judged.items() if grade > 0} for judged in grades]
        needed = set[str]().union(*self.relevant)
        order = sorted(
            rng.permutation(len(ranking.documents)), key=lambda row: ranking.document_ids[row] not in needed
        )
        rows = order[: max(DOCUMENTS, len(needed))]
        documents = [Document(ranking.document_ids[row], ranking.documents[row]) for row in rows]
        documents = [document for document in documents if document.text.strip()]
        build(folder / name, documents, encoder)
        self.reader = IndexReader(folder / name)
        self.vectors = np.stack([encoder.embed_query(question) for question in self.questions])
        # Calibration
        drawn = [documents[row] for row in rng.permutation(len(documents))]
        halves = {document.id: half for document in drawn if (half := halves_of(document.text, rng))}
        halves = dict(list(halves.items())[:HALVES])
        shutil.copytree(folder / name, folder / f"{name}-halves")
        other_halves = [Document(key, other) for key, (_, other) in halves.items()]
        add(folder / f"{name}-halves", other_halves, encoder, replace=True)
        reader, questions = IndexReader(folder / f"{name}-halves"), [question for question, _ in halves.values()]
        vectors = np.stack([encoder.embed_query(question) for question in questions])
        self.present = ask([reader] * len(questions), vectors, questions)
        self.absent = ask((reader.without(key) for key in halves), vectors, questions)
        self.is_other_half = np.array(self.present.ids) == np.array([*halves])

    def fit(self, columns: list[int], of: str) -> Pipeline:
        """Fit the probability that there is an answer, or that the first hit is one."""
        features = np.concatenate([self.present.features, self.absent.features])[:, columns]
        found = self.is_other_half if of == "hit" else np.ones(len(self.is_other_half), bool)
        labels = np.concatenate([found, np.zeros(len(self.absent.ids), bool)])
        return make_pipeline(StandardScaler(), LogisticRegression(C=1e3)).fit(features, labels)


def with_interval(value: float, draws: np.ndarray) -> dict[str, float]:
    """Return a value with its 95 % interval over questions."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return {"value": value, "low": float(low), "high": float(high)}


def aucs(systems: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[dict[str, object]]:
    """Return the AUC of each system, and what it is ahead of the first, from scores with an answer and without."""
    rng, rows = np.random.default_rng(0), list[dict[str, object]]()
    sizes = [len(scores) for scores in next(iter(systems.values()))]
    shares = [rng.multinomial(size, np.full(size, 1 / size), DRAWS) / size for size in sizes]  # of each draw
    base = None
    for name, (answered, unanswered) in systems.items():
        wins = (answered[:, None] > unanswered) + (answered[:, None] == unanswered) / 2
        value, draws = float(wins.mean()), ((shares[0] @ wins) * shares[1]).sum(axis=1)
        base = base or (value, draws)
        rows.append({"system": name, "metric": "auc", **with_interval(value, draws)})
        rows.append({"system": name, "metric": "ahead", **with_interval(value - base[0], draws - base[1])})
    return rows


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean difference of probability and share, over `BINS` groups of as many questions."""
    groups = np.array_split(np.argsort(probabilities, kind="stable"), BINS)
    gaps = [len(group) * abs(probabilities[group].mean() - labels[group].mean()) for group in groups]
    return float(sum(gaps) / len(labels))


def reliability(own: np.ndarray, unanswered: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Return the calibration error where as many questions are the set's as have no answer here.

    Args:
        own, unanswered: probabilities.
        right: whether what those of the set's questions stand for is so; of the others it never is.
    """
    rng = np.random.default_rng(0)

    def error(one: np.ndarray, other: np.ndarray) -> float:
        labels = np.concatenate([right[one], np.zeros(len(other))])
        return calibration_error(np.concatenate([own[one], unanswered[other]]), labels)

    everything = np.arange(len(own)), np.linspace(0, len(unanswered) - 1, len(own)).astype(int)
    sizes = len(own), len(unanswered)
    draws = [error(*(rng.integers(size, size=len(own)) for size in sizes)) for _ in range(DRAWS)]
    return with_interval(error(*everything), np.array(draws))


def measure(index: CalibratedIndex, others: list[CalibratedIndex]) -> list[dict[str, object]]:
    """Measure the cosine and the probabilities of a set."""
    own = ask([index.reader] * len(index.questions), index.vectors, index.questions)
    is_right = np.array([name in relevant for name, relevant in zip(own.ids, index.relevant)])
    without = (reduce(IndexReader.without, relevant, index.reader) for relevant in index.relevant)
    unanswered = {"topic": ask(without, index.vectors, index.questions).features}
    for other in others:
        unanswered[other.name] = ask([index.reader] * len(other.questions), other.vectors, other.questions).features
    unanswered["all others"] = np.concatenate([unanswered[other.name] for other in others])
    fitted = {(of, name): index.fit(columns, of) for of in ("answer", "hit") for name, columns in FEATURES.items()}

    def probability(key: tuple[str, str], features: np.ndarray) -> np.ndarray:
        return fitted[key].predict_proba(features[:, FEATURES[key[1]]])[:, 1]

    rows: list[dict[str, object]] = []
    for name, features in unanswered.items():
        systems = {COSINE: (own.features[:, 0], features[:, 0])}
        for key in fitted:
            systems[": ".join(key)] = (probability(key, own.features), probability(key, features))
        rows += [{"data": index.name, "unanswered": name, **row} for row in aucs(systems)]
    for of, by in fitted:
        right = is_right if of == "hit" else np.ones(len(is_right), bool)
        for name in ("all others", "topic"):
            answered, not_answered = (probability((of, by), each) for each in (own.features, unanswered[name]))
            error = reliability(answered, not_answered, right)
            rows.append({"data": index.name, "unanswered": name, "system": f"{of}: {by}", "metric": ERROR, **error})
    for name, features in ({"own": own.features} | unanswered).items():
        for least in LEAST:
            share = {"value": float((features[:, 0] >= least).mean())}
            rows.append({"data": index.name, "unanswered": name, "system": f"{least}", "metric": "share", **share})
    about = {"other half first": index.is_other_half.mean(), "right first": is_right.mean()}
    about |= {"documents": len(index.reader), "halves": len(index.is_other_half), "questions": len(index.questions)}
    return rows + [{"data": index.name, "metric": name, "value": float(value)} for name, value in about.items()]


def table(rows: pd.DataFrame, form: str = "{:.2f}", index: str = "system", columns: str = "data") -> list[str]:
    """Return a table of values with their intervals."""
    has_interval = rows.low.notna()
    texts = rows.value.map(form.format)
    intervals = " (" + rows.low.map(form.format) + " to " + rows.high.map(form.format) + ")"
    rows = rows.assign(text=texts.where(~has_interval, texts + intervals))
    return markdown_of(rows.pivot(index=index, columns=columns, values="text").fillna(""))


def markdown(rows: pd.DataFrame) -> str:
    """Return the tables as Markdown."""
    parts = {metric: rows[rows.metric == metric] for metric in ("auc", "ahead", ERROR, "share")}
    lines = [
        "# A score to cut at",
        "",
        (__doc__ or "").strip().partition(" layout.\n\n")[2],
        "",
    ]
    for name in ("all others", "topic"):
        lines += [f"## Questions without an answer: {name}", "", "AUC:", ""]
        auc, ahead, error = (parts[metric][parts[metric].unanswered == name] for metric in ("auc", "ahead", ERROR))
        lines += [*table(auc, "{:.3f}"), "Ahead of the raw cosine:", "", *table(ahead, "{:+.3f}")]
        lines += ["Calibration error, as many questions of both kinds:", "", *table(error)]
    auc = parts["auc"][(parts["auc"].system == COSINE)]
    lines += ["## The raw cosine", "", "AUC, by the questions without an answer:", ""]
    lines += table(auc, "{:.3f}", "unanswered")
    for name, part in parts["share"][parts["share"].unanswered.isin(("own", "all others", "topic"))].groupby("system"):
        lines += [f"Share of questions whose first hit has a cosine of {name} or more:", ""]
        lines += table(part, "{:.2f}", "unanswered")
    about = rows[rows.system.isna()].pivot(index="metric", columns="data", values="value")
    return "\n".join([*lines, "## The indexes", "", *markdown_of(about.map("{:.4g}".format))])


def main() -> None:
    """Measure all sets, and write rows and tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "search_cuts.json")
    options = parser.parse_args()
    encoder = Encoder(options.encoder, EncoderArguments([options.encoder]), cache_directory() / "search_cuts")
    with tempfile.TemporaryDirectory() as folder:
        indexes = [CalibratedIndex(name, options.data_dir, encoder, Path(folder)) for name in SETS]
        rows = [row for index in indexes for row in measure(index, [each for each in indexes if each is not index])]
    write_text(options.output, json.dumps({"encoder": Path(options.encoder).name, "rows": rows}) + "\n")
    write_text(options.output.with_suffix(".md"), markdown(pd.DataFrame(rows)))


if __name__ == "__main__":
    main()
