"""How well are documents found by vectors, by words and by both? Ways to search, other tools, sets and encoders.

    python -m benchmarks.studies.search.report --data_dir DIR --encoders DIR [--peers txtai lancedb]
    python -m benchmarks.studies.search.report --data_dir DIR --encoders DIR --list

The cells are those of study.yaml, one a set and encoder. DIR has the folders scifact, cacm, cranfield, pubmedqa, qmsum
(BEIR's layout), wikipedia, aan, 20newsgroups and dbpedia; python_docs is built in. Running again goes on where it was
stopped: see `benchmarks.engine.cells`. One weight serves all sets; a prototype on five of them chose it.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.engine.cells import Arguments, run_study
from benchmarks.engine.results import Results
from benchmarks.studies.search.sets import SETS
from benchmarks.studies.search.step import OURS, WEIGHTS
from docsplit.data.fusion import WEIGHT

STUDY = Path(__file__).with_name("study.yaml")
METHODS = ["dense", "BM25", "BM25, stems", "RRF", "RRF, stems", "sum", OURS]
OTHERS = ["semantic_search", "bm25s", "txtai", "txtai, BB25", "lancedb"]
AGAINST = ["dense", "BM25, stems", "RRF", "RRF, stems", "sum", "txtai", "txtai, BB25", "lancedb"]
JUDGED = ("scifact", "cacm", "cranfield", "pubmedqa", "qmsum")  # by people; PubMedQA's questions are titles
CHOSE = ("scifact", "cacm", "cranfield", "pubmedqa", "wikipedia_titles")  # the weight, and that words are stemmed
PARTS = {
    "judged by people": JUDGED,
    "with queries out of documents": tuple(name for name in SETS if name not in JUDGED),
    "that did not choose the weight": tuple(name for name in SETS if name not in CHOSE),
    "": tuple(SETS),
}
PUBLISHED = {"all-MiniLM-L6-v2": 64.5, "all-mpnet-base-v2": 65.6}  # nDCG@10 on SciFact, by MTEB
INTRODUCTION = f"""How well documents are found, in percent. *dense*: by the cosine of vectors. *RRF* and *sum*: by
vectors and BM25, joined by reciprocal ranks and by the weighted sum (w {WEIGHT} on all sets). *stems*: BM25 counts
stems (English Snowball) in place of words. Beside them, as they come, from the same texts and vectors:
sentence-transformers' *semantic_search*, *bm25s*, the hybrids of *txtai* and of *LanceDB*. Vectors are searched
exactly. *txtai, BB25*: the fusion that txtai publishes its best figures of. Ours gives each candidate of either side
both scores; the tools score a document by the side that found it. Titles, first lines and first sentences that ask are
taken out of the documents. {", ".join(SETS[name].words.partition(":")[0] for name in CHOSE)} chose w and that words
are stemmed, with all-MiniLM-L6-v2; the others, and the other encoder, had no say.
"""


def pivot(rows: pd.DataFrame, columns: str, value: str = "value") -> pd.DataFrame:
    """Return a line a set, in percent, in the order of the sets; columns that a set lacks are left out."""
    table = 100 * rows.pivot(index="data", columns=columns, values=value)
    return table.loc[[name for name in SETS if name in table.index]].dropna(axis=1)


def markdown_of(cells: pd.DataFrame) -> list[str]:
    """Return the lines of a table of texts, with an empty line after it; sets in a reader's words."""
    lines = [["", *cells.columns], ["---", *["---:"] * len(cells.columns)]]
    lines += [[SETS[name].words if name in SETS else name, *line] for name, line in zip(cells.index, cells.to_numpy())]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def means(numbers: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the lines of each part of the sets that has two or more of them, by the name of its mean."""
    parts = {about: numbers.loc[[name for name in numbers.index if name in part]] for about, part in PARTS.items()}
    told = {about: part for about, part in parts.items() if not about or 1 < len(part) < len(numbers)}
    return {f"mean of {len(part)} {about}".strip(): part for about, part in told.items()}


def values(rows: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """Return the value of each method on each set, and the means; bold: the highest of `methods` that are ours."""
    numbers = pivot(rows, "method")
    numbers = numbers[[method for method in methods if method in numbers]]
    for name, part in means(numbers).items():
        numbers.loc[name] = part.mean()
    texts, ours = numbers.map("{:.1f}".format), [method for method in numbers if method not in OTHERS]
    highest = numbers[ours].eq(numbers[ours].max(axis=1), axis=0).reindex(columns=numbers.columns, fill_value=False)
    texts = texts.mask(highest, "**" + texts + "**")
    for fact in ("queries", "documents"):
        texts.insert(0, fact, rows.groupby("data")[fact].first().map("{:,}".format))
    return texts.fillna("")


def differences(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what the sum with stems is ahead of others, with intervals; bold: the interval leaves 0 out.

    The interval of the mean is that of a sum of independent numbers, whose deviations the intervals of the sets tell.
    """
    rows = rows[rows.method == OURS]
    ahead, low, high = (pivot(rows, "against", name) for name in ("value", "low", "high"))
    for name, part in means(ahead).items():
        deviation = np.sqrt(((high - low).loc[part.index] ** 2).sum()) / 2 / len(part)
        ahead.loc[name], low.loc[name], high.loc[name] = part.mean(), part.mean() - deviation, part.mean() + deviation
    ahead_text, low_text, high_text = (table.map("{:+.1f}".format) for table in (ahead, low, high))
    ahead_text = ahead_text.mask((low > 0) | (high < 0), "**" + ahead_text + "**")
    return (ahead_text + " (" + low_text + " to " + high_text + ")")[[name for name in AGAINST if name in ahead]]


def published(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each encoder alone finds on SciFact, by length and dtype, beside MTEB's figure."""
    rows = rows[(rows.data == "scifact") & (rows.method == "dense") & (rows.metric == "ndcg_at_10")]
    names = rows.encoder + ", " + rows.tokens.astype(str) + " tokens, " + rows.dtype
    figures = {"ours": 100 * rows.value, "MTEB's": (theirs := rows.encoder.map(PUBLISHED))}
    figures["difference"] = figures["ours"] - theirs
    return pd.DataFrame(figures).set_index(names).sort_index().map("{:.1f}".format)


def markdown(results: Results) -> str:
    """Return the tables as Markdown."""
    rows, lines = pd.DataFrame(results.rows), [INTRODUCTION]
    for encoder, own in rows[rows.task == "search"].groupby("encoder"):
        ndcg, ahead, recall = (
            own[own.metric == metric] for metric in ("ndcg_at_10", "ndcg_at_10_difference", "recall_at_100")
        )
        by_weight = values(ndcg, [OURS if weight == WEIGHT else f"{OURS}, w {weight}" for weight in WEIGHTS])
        lines += [f"## {encoder}", "", "nDCG@10; bold: the highest of ours:", ""]
        lines += markdown_of(values(ndcg, METHODS + OTHERS))
        lines += ["nDCG@10 of the sum with stems less that of others, with 95 % intervals over queries:", ""]
        lines += [*markdown_of(differences(ahead)), "Recall@100:", "", *markdown_of(values(recall, METHODS + OTHERS))]
        lines += [f"nDCG@10 of the sum with stems by w, the weight of the vectors ({OURS}: {WEIGHT}):", ""]
        lines += markdown_of(by_weight.rename(columns=lambda name: name.removeprefix(f"{OURS}, ")))
    lines += ["nDCG@10 on SciFact by the encoder alone, beside MTEB's:", "", *markdown_of(published(rows))]
    return "\n".join([*lines, results.what_is_missing()]) + "\n"


def main() -> None:
    """Run the cells, then write the results so far."""
    arguments: Arguments = {
        "data_dir": {"required": True, "help": "folder with a folder of each data set"},
        "encoders": {"help": "folder with a folder of each encoder (default: the Hub's)"},
        "peers": {"nargs": "*", "choices": ["txtai", "lancedb"], "help": "other tools, installed (default: none)"},
    }
    run_study(STUDY, __doc__, arguments, markdown, results_name="search_evidence")


if __name__ == "__main__":
    main()
