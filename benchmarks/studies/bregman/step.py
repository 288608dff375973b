"""One step of the cells of `benchmarks.studies.bregman.report`: write a set's files, or the rows of a probe.

python -m benchmarks.studies.bregman.step --data_dir DIR --pieces pieces.jsonl     # for the masked LM of the start
python -m benchmarks.studies.bregman.step --data 20news --data_dir DIR --write folder [--part validation]
python -m benchmarks.studies.bregman.step --probe results.json [--encoder folder] --rows rows.json  # or several
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.results import Row
from benchmarks.studies.adaptation.sets import judgments, news, with_validation
from docsplit.data.passages import to_passages
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.tfidf import TFIDF
from docsplit.runtime.files import write_text

SETS = ("20news", "ecthr")
PIECE = 300  # words of the documents that the masked LM reads, which has 256 tokens
METRICS = ("micro_f1", "macro_f1", "macro_f1_lexglue")
LOGGED = (  # of the last log: whether the embeddings have collapsed, and whether the ensemble is in use
    *("alignment", "uniformity", "dimension_std", "dimension_correlation", "effective_rank"),
    *("subnetworks_active", "subnetworks_entropy", "info_nce_loss", "bregman_loss"),
)
Parts = dict[str, tuple[list[str], list[Any]]]


def parts_of(data: str, data_dir: Path, size: int, part: str) -> Parts:
    """Return texts and labels of "train", "validation" and "test"; with part "validation" that part is the test.

    Raises:
        ValueError: if there is no such set.
    """
    if data not in SETS:
        raise ValueError(f"There is no data set {data!r}, expected one of {SETS}.")
    split = with_validation(news(data_dir, size) if data == "20news" else judgments(data_dir))
    assert split.validation_texts is not None
    assert split.validation_labels is not None
    validation = split.validation_texts, label_names(split, split.validation_labels)
    parts = {"train": (split.train_texts, label_names(split, split.train_labels))}
    if part == "validation":
        return parts | {"test": validation}
    return parts | {"validation": validation, "test": (split.test_texts, label_names(split, split.test_labels))}


def label_names(split: LabelledSplit, labels: np.ndarray) -> list[Any]:
    """Return the names of the class of each document, or lists of those of its classes."""
    if labels.ndim == 1:
        return [split.class_names[label] for label in labels]
    return [[split.class_names[label] for label in np.flatnonzero(row)] for row in labels]


def write_parts(parts: Parts, folder: Path) -> None:
    """Write each part as labelled documents, and the texts of the train part as the corpus to pretrain on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (texts, labels) in parts.items():
        rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels)]
        write_text(folder / f"{name}.jsonl", "\n".join(rows) + "\n")
    write_text(folder / "corpus.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in parts["train"][0]))


def write_pieces(data_dir: Path, size: int, path: Path) -> None:
    """Write the documents of the train parts of all sets, cut into passages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [text for data in SETS for text in parts_of(data, data_dir, size, "validation")["train"][0]]
    pieces = [piece.text for text in texts for piece in to_passages(text, PIECE)]
    write_text(path, "".join(json.dumps({"text": piece}) + "\n" for piece in pieces))


def name_of(encoder: str) -> str:
    """Return the name of NAME=path,path, or TF-IDF; the start has none."""
    name, given, _ = encoder.partition("=")
    return name if given or name == TFIDF else "start"


def rows_of(probe: dict[str, Any], encoder: Path | None) -> Iterator[Row]:
    """Yield a row for each metric of each head of each encoder, its cost, each comparison, and what was logged last.

    Heads other than SetFit count on all labels alone. Seconds are those to embed and to train the head.
    """
    for row in probe["rows"]:
        if row["shots"] is not None and row["head"] != "setfit":
            continue
        fields = {"head": row["head"], "features": row["features"], "test_documents": row["test_documents"]}
        fields |= {"trained_share": row.get("trainable_share"), "warning": row.get("warning")}
        fields |= {"method": name_of(row["encoder"])} if encoder is None else {}
        prefix = head_name(row["head"], row["features"], row["shots"])
        for metric in METRICS:
            if f"{metric}_mean" in row:
                values = {"value": row[f"{metric}_mean"], "std": row[f"{metric}_std"]}
                yield fields | {"metric": f"{prefix} {metric}"} | values
        if encoder is None and row.get("seconds") is not None:
            spent = row["seconds"] + (row["embedding_seconds"] or 0) / (row.get("pretraining_seeds") or 1)
            yield fields | {"metric": f"{prefix} seconds", "value": spent, "std": None}
    if encoder is None:
        for comparison in probe["comparisons"]:
            fields = {"method": f"{name_of(comparison['a'])} - {name_of(comparison['b'])}", "head": comparison["head"]}
            prefix = head_name(comparison["head"], comparison["features"], comparison.get("shots"))
            fields["metric"] = f"{prefix} {comparison['measure']}, difference"
            fields |= {"value": comparison["difference"], "low": comparison["low"], "high": comparison["high"]}
            yield fields | {"ahead": comparison["ahead"] and name_of(comparison["ahead"])}
        return
    (state,) = encoder.glob("checkpoint-*/trainer_state.json")
    logs = [entry for entry in json.loads(state.read_text(encoding="utf-8"))["log_history"] if "alignment" in entry]
    for name in LOGGED:
        if history := [[entry["step"], entry[name]] for entry in logs if name in entry]:
            yield {"metric": name, "value": history[-1][1], "history": history}


def head_name(head: str, features: str, shots: int | None) -> str:
    """Return the name of a head in rows: "mlp", "mlp, standardized," or "setfit, 8 shots,"."""
    parts = [head] + ([features] if features == "standardized" else []) + ([f"{shots} shots"] if shots else [])
    return ", ".join(parts) + ("," if len(parts) > 1 else "")


def main() -> None:
    """Write files or rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="20news or ecthr")
    parser.add_argument("--data_dir", type=Path)
    parser.add_argument("--max_documents", type=int, default=2000, help="labelled documents of the train part")
    parser.add_argument(
        "--pieces", type=Path, help="write passages of the train parts of all sets here, for a masked LM"
    )
    parser.add_argument("--part", choices=["test", "validation"], default="test")
    parser.add_argument("--write", type=Path, help="the folder for a set's files")
    parser.add_argument("--probe", type=Path, nargs="+", help="results.json of run_probe_classification.py")
    parser.add_argument("--encoder", type=Path, help="the run of one encoder, whose last log makes rows")
    parser.add_argument("--rows", type=Path, help="file for the rows")
    options = parser.parse_args()
    if options.pieces is not None:
        write_pieces(options.data_dir, options.max_documents, options.pieces)
        return
    if options.write is not None:
        write_parts(parts_of(options.data, options.data_dir, options.max_documents, options.part), options.write)
        return
    probes = [json.loads(path.read_text(encoding="utf-8")) for path in options.probe]
    rows = [row for probe in probes for row in rows_of(probe, options.encoder)]
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
