"""One step of the cells of `benchmarks.bregman`: writes a set's files, or the rows of a probe.

python -m benchmarks.bregman_step --data 20news --data_dir DIR --write folder [--part validation]
python -m benchmarks.bregman_step --probe results.json [--encoder folder] --rows rows.json
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from docsplit.data.labelled import LabelledSplit, load_labelled
from docsplit.runtime.files import write_text

MAX_TEST, VALIDATION_SHARE = 1000, 0.3
METRICS = ("micro_f1", "macro_f1", "macro_f1_lexglue", "accuracy")
LOGGED = (  # of the last log: whether the embeddings have collapsed, and whether the ensemble is in use
    *("alignment", "uniformity", "dimension_std", "dimension_correlation", "effective_rank"),
    *("subnetworks_active", "subnetworks_entropy", "info_nce_loss", "bregman_loss"),
)
Parts = dict[str, tuple[list[str], list[Any]]]


def parts_of(data: str, data_dir: Path, size: int, part: str) -> Parts:
    """Texts and labels of "train", "validation" and "test"; with part "validation" that part is the test.

    Raises:
        ValueError: if there is no such set.
    """
    if data == "20news":
        files = {f"{name}_file": str(data_dir / "20newsgroups" / f"{name}.parquet") for name in ("train", "test")}
        limits = {"max_train_samples": size, "max_test_samples": min(MAX_TEST, size // 2)}
        split = load_labelled(strip_newsgroup_headers=True, **files, **limits)  # type: ignore[arg-type]
    elif data == "ecthr":
        files = {f"{n}_file": str(data_dir / "ecthr" / f"{n}.parquet") for n in ("train", "validation", "test")}
        split = load_labelled(label_column="labels", max_train_samples=size, **files)  # type: ignore[arg-type]
    else:
        raise ValueError(f"There is no data set {data!r}, expected 20news or ecthr.")
    if split.validation_texts is None or split.validation_labels is None:
        rows = np.arange(len(split.train_texts))
        train, held_out = train_test_split(
            rows, test_size=VALIDATION_SHARE, stratify=split.train_labels, random_state=0
        )
        split.validation_texts = [split.train_texts[row] for row in held_out]
        split.validation_labels = split.train_labels[held_out]
        split.train_texts, split.train_labels = [split.train_texts[row] for row in train], split.train_labels[train]
    validation = split.validation_texts, _names(split, split.validation_labels)
    parts = {"train": (split.train_texts, _names(split, split.train_labels))}
    if part == "validation":
        return parts | {"test": validation}
    return parts | {"validation": validation, "test": (split.test_texts, _names(split, split.test_labels))}


def _names(split: LabelledSplit, labels: np.ndarray) -> list[Any]:
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


def rows_of(probe: dict[str, Any], encoder: Path | None) -> Iterator[dict[str, Any]]:
    """A row for each metric of each head of each encoder on all labels, for each comparison, and of the last log."""
    for row in probe["rows"]:
        own = {"head": row["head"], "features": row["features"]}
        if encoder is None:
            own["method"] = row["encoder"].partition("=")[0]
        prefix = row["head"] if row["features"] == "raw" else f"{row['head']}, standardized,"
        for metric in METRICS:
            if f"{metric}_mean" in row:
                yield (
                    own
                    | {"metric": f"{prefix} {metric}", "value": row[f"{metric}_mean"]}
                    | {
                        "std": row[f"{metric}_std"],
                        "trained_share": row.get("trainable_share"),
                        "test_documents": row["test_documents"],
                    }
                )
    if encoder is None:
        for one in probe["comparisons"]:
            pair = " - ".join(one[side].partition("=")[0] for side in "ab")
            yield (
                {"method": pair, "metric": f"{one['head']}, {one['features']}, {one['measure']}, difference"}
                | {name: one[name] for name in ("low", "high", "ahead")}
                | {"value": one["difference"], "head": one["head"]}
            )
        return
    (state,) = encoder.glob("checkpoint-*/trainer_state.json")
    history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    last = next(entry for entry in reversed(history) if "alignment" in entry)
    yield from ({"metric": name, "value": last[name]} for name in LOGGED if name in last)


def main() -> None:
    """Write files or rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="20news or ecthr")
    parser.add_argument("--data_dir", type=Path)
    parser.add_argument("--max_documents", type=int, default=2000, help="labelled documents of the train part")
    parser.add_argument("--part", choices=["test", "validation"], default="test")
    parser.add_argument("--write", type=Path, help="the folder for a set's files")
    parser.add_argument("--probe", type=Path, help="results.json of run_probe_classification.py")
    parser.add_argument("--encoder", type=Path, help="of one encoder: its run, for the last log")
    parser.add_argument("--rows", type=Path, help="where the rows go")
    options = parser.parse_args()
    if options.write is not None:
        write_parts(parts_of(options.data, options.data_dir, options.max_documents, options.part), options.write)
        return
    rows = list(rows_of(json.loads(options.probe.read_text(encoding="utf-8")), options.encoder))
    write_text(options.rows, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
