"""How well are documents found by vectors, by words and by both? Ways to search, other tools, sets and encoders.

    python -m benchmarks.studies.search.report --data_dir DIR --encoders DIR [--peers txtai lancedb]
    python -m benchmarks.studies.search.report --data_dir DIR --encoders DIR --list

The cells are those of study.yaml, one a set and encoder. DIR has the folders scifact, cacm, cranfield, pubmedqa, qmsum
(BEIR's layout), wikipedia, aan, 20newsgroups and dbpedia; python_docs is built in. Running again goes on where it was
stopped: see `benchmarks.engine.cells`. No weight was chosen on any of the sets.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from benchmarks.engine.cells import Arguments, run_study
from benchmarks.engine.results import Results, Row
from benchmarks.studies.search.step import OURS, WEIGHTS
from docsplit.data.fusion import WEIGHT
from docsplit.evaluation.results.bootstrap import is_clear

STUDY = Path(__file__).with_name("study.yaml")
SETS = {  # in a reader's words: what asks, and what is found
    "scifact": "SciFact: claims, abstracts that support or refute them",
    "cacm": "CACM: questions, abstracts of computing",
    "cranfield": "Cranfield: questions, abstracts of aerodynamics",
    "pubmedqa": "PubMedQA: questions, the abstract that answers",
    "qmsum": "QMSum: questions, pieces of meetings",
    "wikipedia_titles": "Wikipedia: titles, their articles",
    "docstrings": "Python: first lines, the rest of the docstring",
    "aan_titles": "ACL papers: titles, their papers",
    "aan_citations": "ACL papers: titles, papers that these cite",
    "newsgroup_subjects": "20 Newsgroups: subjects, posts of the thread",
    "dbpedia_sentences": "DBpedia: first sentences, the rest of the paragraph",
}
METHODS = {  # in the order of the columns
    "dense": "encoder",
    "BM25": "BM25",
    "BM25, stems": "BM25, stems",
    "RRF": "RRF",
    "RRF, stems": "RRF, stems",
    "sum": "sum",
    OURS: "sum, stems",
    "semantic_search": "semantic_search",
    "bm25s": "bm25s",
    "txtai": "txtai",
    "lancedb": "LanceDB",
}
AGAINST = ("dense", "BM25, stems", "RRF", "RRF, stems", "sum", "txtai", "lancedb")
PUBLISHED = {"all-MiniLM-L6-v2": 64.5, "all-mpnet-base-v2": 65.6}  # nDCG@10 on SciFact, by MTEB
Found = dict[tuple[str, str], Row]  # (data, method)


def table(cells: list[list[str]]) -> list[str]:
    """Return Markdown of a table whose first line is its head, with an empty line after it."""
    ruler = ["---", *["---:"] * (len(cells[0]) - 1)]
    return [f"| {' | '.join(line)} |" for line in [cells[0], ruler, *cells[1:]]] + [""]


def percent(value: float, sign: str = "") -> str:
    """Write a share in percent, with one decimal."""
    return f"{100 * value:{sign}.1f}"


def values(found: Found, methods: Iterable[str], is_bold: bool = True) -> list[list[str]]:
    """Return a line a set and one of their mean: the value of each method; bold: the highest of ours."""
    data = list(dict.fromkeys(name for name, _ in found))
    methods = [method for method in methods if all((name, method) in found for name in data)]
    numbers = np.array([[found[name, method]["value"] for method in methods] for name in data])
    lines = []
    for name, own in zip([*data, None], [*numbers, numbers.mean(axis=0)]):
        shown = [percent(value) for value in own]
        highest = max(own[: 1 + methods.index(OURS)]) if is_bold else None
        row = found.get((name, methods[0]), {}) if name else {}
        facts = [f"{row['documents']:,}", f"{row['queries']:,}"] if row else ["", ""]
        marked = [f"**{text}**" if text == percent(highest or -1) else text for text in shown]
        lines.append([SETS[name] if name else f"mean of {len(data)}", *facts, *marked])
    return [["", "documents", "queries", *(METHODS.get(method, method) for method in methods)], *lines]


def differences(found: Found) -> list[list[str]]:
    """Return a line a set and one of their mean: what the sum with stems is ahead of others, with intervals.

    The interval of a mean is that of a sum of independent numbers whose deviations the intervals of the sets tell.
    """
    data = list(dict.fromkeys(name for name, _ in found))
    others = [other for other in AGAINST if all((name, other) in found for name in data)]
    lines = [[SETS[name], *(_difference(*_bounds(found[name, other])) for other in others)] for name in data]
    mean = []
    for other in others:
        value, low, high = np.array([_bounds(found[name, other]) for name in data]).T
        deviation = np.sqrt(((high - low) ** 2).sum()) / 2 / len(data)
        mean.append(_difference(value.mean(), value.mean() - deviation, value.mean() + deviation))
    return [["sum, stems - ", *(METHODS[other] for other in others)], *lines, [f"mean of {len(data)}", *mean]]


def _bounds(row: Row) -> tuple[float, float, float]:
    return row["value"], row["low"], row["high"]


def _difference(value: float, low: float, high: float) -> str:
    mark = "**" if is_clear(low, high) else ""
    return f"{mark}{percent(value, '+')}{mark} ({percent(low, '+')} to {percent(high, '+')})"


def published(rows: Iterable[Row]) -> list[list[str]]:
    """Return a line an encoder and a way to embed: what the encoder alone finds on SciFact, beside MTEB's figure."""
    dense = [row for row in rows if (row["data"], row["method"], row["metric"]) == ("scifact", "dense", "ndcg_at_10")]
    lines = []
    for encoder, figure in PUBLISHED.items():
        lines += [[f"{encoder}, {row['tokens']} tokens, {row['dtype']}", percent(row["value"]), f"{figure}",
                   f"{100 * row['value'] - figure:+.1f}"] for row in dense if row["encoder"] == encoder]  # fmt: skip
    return [["", "ours", "MTEB's", "difference"], *lines]


def of(rows: Iterable[Row], encoder: str, metric: str, name: Callable[[Row], str]) -> Found:
    """Return the rows of an encoder and a metric by their set and what `name` reads of them."""
    chosen = [row for row in rows if (row["task"], row["encoder"], row["metric"]) == ("search", encoder, metric)]
    return {(data, name(row)): row for data in SETS for row in chosen if row["data"] == data}


def markdown(results: Results) -> str:
    """Return the tables as Markdown."""
    rows = results.rows
    lines = [
        "How well documents are found, in percent. *encoder*: by the cosine of vectors. *RRF* and *sum*: by vectors "
        f"and BM25, joined by reciprocal ranks and by the weighted sum (w {WEIGHT} on all sets). *stems*: BM25 counts "
        "stems (English Snowball) in place of words. Beside them, as they come, from the same texts and vectors: "
        "sentence-transformers' semantic_search, bm25s, the hybrids of txtai and of LanceDB. Titles, first lines and "
        "first sentences that ask are taken out of the documents.",
        "",
    ]
    for encoder in dict.fromkeys(row["encoder"] for row in rows if row["task"] == "search"):
        found = of(rows, encoder, "ndcg_at_10", lambda row: row["method"])
        ahead = of(
            [row for row in rows if row["method"] == OURS],
            encoder,
            "ndcg_at_10_difference",
            lambda row: row["against"],
        )
        recall = of(rows, encoder, "recall_at_100", lambda row: row["method"])
        weights = {weight: f"{OURS}, w {weight}" for weight in WEIGHTS} | {WEIGHT: OURS}
        lines += [f"## {encoder}", "", "nDCG@10; bold: the highest of ours:", "", *table(values(found, METHODS))]
        lines += ["nDCG@10 of the sum with stems less that of others, and the 95 % interval over queries; bold: the "
                  "interval leaves 0 out:", "", *table(differences(ahead))]  # fmt: skip
        lines += ["Recall@100:", "", *table(values(recall, METHODS))]
        by_weight = values(found, [weights[weight] for weight in sorted(weights)], is_bold=False)
        by_weight[0][3:] = [f"w {weight}" for weight in sorted(weights)]
        lines += ["nDCG@10 of the sum with stems by the weight of the vectors:", "", *table(by_weight)]
    if compared := published(rows)[1:]:
        lines += ["## Beside published figures", "", "nDCG@10 on SciFact by the encoder alone:", ""]
        lines += table([published(rows)[0], *compared])
    lines += [results.what_is_missing()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the cells, then write the results so far."""
    arguments: Arguments = {
        "data_dir": {"required": True, "help": "folder with a folder of each data set"},
        "encoders": {"help": "folder with a folder of each encoder (default: the Hub's)"},
        "peers": {"nargs": "*", "choices": ["txtai", "lancedb"], "help": "other tools, installed (default: none)"},
    }
    run_study(STUDY, __doc__, arguments, markdown, name="search_evidence")


if __name__ == "__main__":
    main()
