"""What should an index compare a query with: the nearest passage, the whole document, or both? And with words?

    python -m benchmarks.studies.search.passages --data_dir DIR --encoder sentence-transformers/all-MiniLM-L6-v2

DIR has the folders cacm, qmsum, cranfield, pubmedqa and scifact, in BEIR's layout.

The choice was made on CACM and QMSum and confirmed on the others. Passages are those of an index, of about 100 words.
`words` adds the words of a text to its vector, as `adapt` does; they are fitted on the collection itself, without its
queries.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.studies.search.report import markdown_of
from docsplit.data.bm25 import BM25
from docsplit.data.fusion import sum_of_scores
from docsplit.data.passages import to_passages
from docsplit.data.sets.rankings import Ranking, load_collection
from docsplit.data.sets.set_arguments import RankingArguments
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.lexical_ridge import fit
from docsplit.evaluation.ranking import curves, top_of_scores
from docsplit.evaluation.results.bootstrap import paired_bootstrap, resample
from docsplit.modeling.encoder_with_words import add_words
from docsplit.runtime.files import ROOT, cache_directory, write_text

SETS = ("cacm", "qmsum", "cranfield", "pubmedqa", "scifact")
WEIGHTS = (0.65, 0.7, 0.75, 0.8, 0.85, 0.9)


def scores_of(ranking: Ranking, encoder: Encoder) -> dict[str, np.ndarray]:
    """Return the scores (Q, N) of ways to compare queries with documents, and of BM25."""
    several = [[passage.text for passage in to_passages(text, 100)] or [""] for text in ranking.documents]
    passages, starts = [text for texts in several for text in texts], np.cumsum([0, *map(len, several)])
    of_passages, of_documents = map(encoder.embed_for_index, (passages, ranking.documents))
    queries = np.stack([encoder.embed_query(query) for query in ranking.queries])
    words = fit(encoder.model, ranking.documents, of_documents)
    document_of = np.repeat(np.arange(len(several)), np.diff(starts))

    def nearest(products: np.ndarray) -> np.ndarray:
        return np.maximum.reduceat(products, starts[:-1], axis=1)

    def with_words(vectors: np.ndarray, texts: list[str]) -> np.ndarray:
        added = torch.cat([words.words(**words.words.preprocess([text])) for text in texts])
        return add_words(torch.from_numpy(vectors), added, words.facts.weight).numpy()

    whole = with_words(of_documents, ranking.documents)
    own = with_words(of_passages, passages)
    of_its_document = with_words(of_passages, [ranking.documents[number] for number in document_of])
    found = {
        "document": queries @ of_documents.T,
        "passage": nearest(queries @ of_passages.T),
        "document, words": queries @ whole.T,
        "passage, words": nearest(queries @ own.T),
        "passage, words of its document": nearest(queries @ of_its_document.T),
    }
    for ending in ("", ", words", ", words of its document"):
        beside = found["document" + ending.partition(" of")[0]]
        found[f"mean of both{ending}"] = (found[f"passage{ending}"] + beside) / 2
    rows = np.broadcast_to(np.arange(len(passages)), (len(queries), len(passages)))
    found["BM25"] = BM25(ranking.documents).scores(ranking.queries, rows[:, : len(several)])
    found["BM25 of passages"] = nearest(BM25(passages).scores(ranking.queries, rows))
    return found


def measure(name: str, ranking: Ranking, encoder: Encoder) -> list[dict[str, object]]:
    """Return nDCG@10 of each way alone and in the sum, and what the mean of both is ahead of the document alone."""
    found, items = scores_of(ranking, encoder), {}
    bm25 = {"": found.pop("BM25"), ", BM25 of passages": found.pop("BM25 of passages")}
    for way, similarities in found.items():
        items[way, "dense", 1.0] = similarities
        for ending, words in bm25.items():
            for weight in WEIGHTS if "words" not in way and not ending else (0.8,):
                items[way, f"sum{ending}", weight] = sum_of_scores(similarities, words, weight)
    measured = {key: curves(top_of_scores(scores, 10), ranking)["ndcg@10"] for key, scores in items.items()}
    base, *others = resample([measured["document", "sum", 0.8], *measured.values()])
    rows: list[dict[str, object]] = []
    for (way, method, weight), value, system in zip(measured, measured.values(), others):
        ahead = paired_bootstrap(system, base)
        row = {"data": name, "way": way, "method": method, "weight": weight, "value": float(value.of_runs()[0])}
        rows.append(row | {"ahead": ahead.difference, "low": ahead.low, "high": ahead.high})
    return rows


def table_of(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Return a table in percent, a line for each combination of these columns, a column a set."""
    table = 100 * rows.pivot(index=names, columns="data", values="value")
    table.index = [", ".join(map(str, key)) for key in table.index]
    table["mean"] = table.mean(axis=1)
    return markdown_of(table.map("{:.1f}".format))


def main() -> None:
    """Measure all sets, and write rows and tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--sets", nargs="*", default=SETS, help="default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "search_passages.json")
    options = parser.parse_args()
    encoder = Encoder(options.encoder, EncoderArguments([options.encoder]), cache_directory() / "search_passages")
    rows: list[dict[str, object]] = []
    for name in options.sets:
        ranking = load_collection(RankingArguments(str(options.data_dir / name)))
        rows += measure(name, ranking, encoder)
        write_text(options.output, json.dumps({"encoder": Path(options.encoder).name, "rows": rows}) + "\n")
    frame = pd.DataFrame(rows)
    by_weight = frame[(frame.method == "sum") & ~frame.way.str.contains("words")]
    text = [(__doc__ or "").strip().rpartition("\n\n")[2], "", f"nDCG@10, {Path(options.encoder).name}, w 0.8:", ""]
    text += table_of(frame[frame.weight.isin([0.8, 1.0])], ["method", "way"])
    text += ["By w, in the sum:", "", *table_of(by_weight, ["way", "weight"])]
    write_text(options.output.with_suffix(".md"), "# Passages, documents and words\n\n" + "\n".join(text))


if __name__ == "__main__":
    main()
