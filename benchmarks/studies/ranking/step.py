"""A step of the ranking study: train one encoder for ranking, by kind of negatives and by fold, and measure each.

    python -m benchmarks.studies.ranking.step --encoder outputs/docsplit --method docsplit \\
        --negatives random bm25 --folds 5 \\
        --train "--corpus data/cranfield --max_steps 60" --measure "--collection data/cranfield" \\
        --work_dir outputs/step --rows outputs/step/rows.json
    python -m benchmarks.studies.ranking.step --write outputs/wikipedia.jsonl --corpus data/wikipedia/train.parquet \\
        --max_documents 5000

`none` among the negatives is the encoder as it is. Without --folds there is one training, on the split "train", and
one measurement. A fold that was measured is not run again. A row of nDCG@10 has an interval over queries, and the
value of each query in the order of their names: pairs are tested over these.
"""

import argparse
import csv
import json
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.engine.results import SAMPLES, Row
from docsplit.data.corpora import add_text, load_corpus
from docsplit.runtime.files import ROOT, write_text

MEASURES = ("ndcg_at_10", "mrr_at_10", "recall_at_100")
TESTED = MEASURES[0]  # whose value of each query is kept
METHODS = ("dense", "hybrid", "bm25")
UNTRAINED = "none"
DRAWS = 2000  # of the bootstrap over queries


def run(script: str, *words: object) -> None:
    """Run a script of this project, which must succeed."""
    subprocess.run([sys.executable, str(ROOT / script), *map(str, words)], check=True)


def train_and_measure(options: argparse.Namespace, kind: str, fold: int | None) -> Path:
    """Return the folder with the results of an encoder, trained with this kind of negatives, on the queries of this
    fold.
    """
    folder = options.work_dir / "-".join([kind, *([] if fold is None else [str(fold)])])
    words = [] if fold is None else ["--folds", options.folds, "--fold", fold]
    if not (folder / "results.json").exists():
        encoder = options.encoder
        if kind != UNTRAINED:
            encoder = str(folder / "encoder")
            places = ["--model_name_or_path", options.encoder, "--output_dir", encoder, "--overwrite_output_dir"]
            negatives = ["--negatives", *kind.split("+")]
            run("run_docsplit_pretraining.py", *shlex.split(options.train), *places, *negatives, *words)
        measured = ["--model_name_or_path", encoder, "--output_dir", folder, "--methods", *METHODS]
        run("run_document_retrieval.py", *shlex.split(options.measure), *measured, *words)
        if encoder != options.encoder:
            shutil.rmtree(encoder)
    return folder


def rows_of(folders: list[Path], method: str) -> Iterator[Row]:
    """Yield a row for each measure of each way of ranking: the mean over the queries of all folds.

    The row of nDCG@10 has their values too. BM25 needs no encoder and has a name of its own.
    """
    queries_of: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for folder in folders:
        with (folder / "queries.csv").open(encoding="utf-8", newline="") as lines:
            for line in csv.DictReader(lines):
                if line["method"] in METHODS:
                    name = "BM25" if line["method"] == "bm25" else f"{method}, {line['method']}"
                    for measure in MEASURES:
                        queries_of[name, measure][line["query_id"]] = float(line[measure])
    for (name, measure), values in queries_of.items():
        row = {"method": name, "metric": measure, "value": sum(values.values()) / len(values)}
        if measure == TESTED:
            of_queries = np.array([round(values[query], 4) for query in sorted(values)])
            draws = np.random.default_rng(0).choice(of_queries, (DRAWS, len(of_queries))).mean(axis=1)
            low, high = np.percentile(draws, [2.5, 97.5])
            row |= {"low": float(low), "high": float(high), SAMPLES: of_queries.tolist()}
        yield row


def write_collection(corpus: str, max_documents: int, path: Path) -> None:
    """Write the first documents of a corpus with titles."""
    rows = load_corpus(corpus)
    rows = add_text(rows.select(range(min(max_documents, len(rows)))), "text")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps({"title": row["title"], "text": row["text"]}) + "\n" for row in rows))


def main() -> None:
    """Train, measure and write rows; or write a collection."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", help="encoder to start from")
    parser.add_argument("--method", help="name of the encoder in the rows")
    parser.add_argument(
        "--negatives", nargs="+", default=[UNTRAINED], help="kinds of negatives; bm25+self: one for each half"
    )
    parser.add_argument("--folds", type=int, default=0, help="number of folds; 0: the collection has splits")
    parser.add_argument("--train", default="", help="options of run_docsplit_pretraining.py")
    parser.add_argument("--measure", default="", help="options of run_document_retrieval.py")
    parser.add_argument("--work_dir", type=Path)
    parser.add_argument("--rows", type=Path, help="file for the rows")
    parser.add_argument("--write", type=Path, help="write a collection here, and nothing else")
    parser.add_argument("--corpus")
    parser.add_argument("--max_documents", type=int, default=5000)
    options = parser.parse_args()
    if options.write is not None:
        write_collection(options.corpus, options.max_documents, options.write)
        return
    rows: list[Row] = []
    for kind in options.negatives:
        folds = range(options.folds) if options.folds else [None]
        folders = [train_and_measure(options, kind, fold) for fold in folds]
        name = options.method if kind == UNTRAINED else f"{options.method}, {kind}"
        of_kind = list(rows_of(folders, name))
        rows += of_kind if not rows else [row for row in of_kind if row["method"] != "BM25"]
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
