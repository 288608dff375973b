"""One step of a reproduction: measure one encoder, and keep what each test item adds to each figure.

    python -m benchmarks.studies.reproduction.measure [recipe] --evaluation classification --model_name_or_path ENCODER
    python -m benchmarks.studies.reproduction.measure --evaluation random --like ENCODER --seed 0 --output_dir FOLDER

The options are those of the script of the evaluation (`EVALUATIONS`), which it runs. Beside that script's files it
writes rows.json: a row for each head, number of labels, kind of features and measure. Where test items are known the
row of a measure has their `samples`, run after run, so that `benchmarks.studies.reproduction.hypotheses` can draw them
again. The encoder `tfidf_svd` is latent semantic analysis: TF-IDF, and its singular vectors fitted on the training
documents, classified by the same heads.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.results import SAMPLES, Row
from docsplit.data.sets.set_arguments import CitationArguments, LabelledArguments, RankingArguments
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.task_arguments import AnalysisArguments, LinkArguments, ProbeArguments, RetrievalArguments
from docsplit.runtime.files import write_text
from docsplit.runtime.options import parse_arguments

EVALUATIONS: dict[str, tuple[str, tuple[Any, Any]]] = {  # the script that each is, and its options beside encoders
    "classification": ("run_probe_classification.py", (LabelledArguments, ProbeArguments)),
    "links": ("run_aan_retrieval.py", (CitationArguments, LinkArguments)),
    "rotated links": ("run_aan_retrieval.py", (CitationArguments, LinkArguments)),
    "ranking": ("run_document_retrieval.py", (RankingArguments, RetrievalArguments)),
    "analysis": ("run_embedding_analysis.py", (LabelledArguments, AnalysisArguments)),
}
RANDOM = "random"  # write an encoder of random weights
SVD = "tfidf_svd"
DRAWN = {  # numbers of an analysis that have values on drawn documents
    "similarity": ("inner", "inter", "inner_minus_inter"),
    "attention": ("noun_to_uniform", "verb_to_uniform", "adjective_to_uniform", "other_to_uniform"),
}
WEIGHTS = tuple(name.replace("to_uniform", "weight") for name in DRAWN["attention"])  # as they are
DATA_SETS = "data sets"  # the head of the rows that describe the data
GROWTH = "growth beyond the null"  # rank correlation of length with R / R of as many random words
PLACE = ("task", "data", "method", "head", "features", "shots", "metric", "seed")  # what tells rows apart
ABOUT: Row = {"features": "raw", "shots": None, "runs": 1, "std": None}
DENOMINATORS = ", denominators"  # ends the metric of the row that has them, where they are not all 1


def evaluation_of(kind: str, data_args: Any, args: Any) -> Any:
    """Return the evaluation of that kind, `docsplit.evaluation.compare.Evaluation`."""
    if kind == "classification":
        from docsplit.evaluation.classification import Classification

        return Classification(data_args, args)
    if kind == "links":
        from docsplit.evaluation.links import Links

        return Links(data_args, args)
    if kind == "rotated links":
        from benchmarks.studies.reproduction.rotation import RotatedLinks

        return RotatedLinks(data_args, args)
    if kind == "ranking":
        from docsplit.evaluation.ranking import DocumentRanking

        return DocumentRanking(data_args, args)
    from docsplit.evaluation.analysis.analyses import EmbeddingAnalysis

    return EmbeddingAnalysis(data_args, args)


def rows_of(results: Sequence[Any]) -> Iterator[Row]:
    """Yield a row for each measure of each result (`docsplit.evaluation.results.result.Result`)."""
    from docsplit.evaluation.results.bootstrap import ItemScores

    for result in results:
        fields: Row = {"head": result.head, "features": result.features, "shots": result.shots}
        fields |= {"runs": result.runs, "warning": result.warning, "preset": result.preset}
        fields |= {"parameters": result.info.get("num_parameters"), "trained": result.trainable_parameters}
        for measure, measured in result.measured.items():
            values = result.of_runs(measure)
            deviation = float(values.std(ddof=1)) if len(values) > 1 else None
            row = fields | {"metric": measure, "value": float(values.mean()), "std": deviation}
            if not isinstance(measured, ItemScores) or measure != result.task.main:
                yield row
                continue
            yield row | {SAMPLES: _five_decimals(measured.numerators)}
            if (measured.denominators != 1).any():
                denominators = _five_decimals(measured.denominators)
                yield fields | {"metric": measure + DENOMINATORS, "value": float(np.mean(denominators)), "std": None,
                                SAMPLES: denominators}  # fmt: skip
        if result.curves:
            yield fields | {"metric": "fine-tuning", "value": float(result.of_runs(result.task.main).mean()),
                            "std": None, "curve": result.curves[0]}  # fmt: skip


def _five_decimals(values: np.ndarray) -> list[float]:
    return values.astype(np.float64).round(5).ravel().tolist()


def rows_of_analysis(evaluation: Any, folder: Path) -> Iterator[Row]:
    """Yield the rows of clusters, of what has values on drawn sets of documents, of redundancy, and of the data.

    Cosines of sentences and attention to words are no sums over documents: their `samples` are the values on sets of
    documents that were drawn with replacement, the same for every encoder, and the row is marked as `drawn`.
    """
    for one in evaluation.measured:
        yield from rows_of(one.clustering or [])
        for head, estimates in (("similarity", one.similarity), ("attention", one.attention)):
            for name in DRAWN[head] if estimates is not None else ():
                if (resampled := estimates.values.get(name)) is not None:
                    yield ABOUT | {"head": head, "metric": name, "value": float(resampled.scores[0]), "drawn": True,
                                   SAMPLES: _five_decimals(resampled.samples[:, 0])}  # fmt: skip
        for name in WEIGHTS if one.attention is not None else ():
            if (resampled := one.attention.values.get(name)) is not None:
                yield ABOUT | {"head": "attention", "metric": name, "value": float(resampled.scores[0])}
    redundancy = json.loads((folder / "analysis.json").read_text(encoding="utf-8")).get("redundancy", {})
    yield from rows_of_texts(evaluation.split) if redundancy else ()
    for row in redundancy.get("rows", []):
        if row["n"]:
            yield ABOUT | {"head": "redundancy", "metric": f"R, {row['length']}", "value": row["r_mean"]}
    if growth := redundancy.get("growth"):
        values = {end: growth[f"r_to_null{end}"] for end in ("", "_low", "_high")}
        yield ABOUT | {"head": "redundancy", "metric": GROWTH, "value": values[""], "low": values["_low"],
                       "high": values["_high"]}  # fmt: skip


def refuse_doubles(rows: Sequence[Row]) -> None:
    """Check that no two rows measure the same: whoever looks one up would take either for the other in silence.

    Raises:
        ValueError: if two rows differ in nothing but their values.
    """
    seen = set()
    for row in rows:
        place = tuple(row.get(name) for name in PLACE)
        if place in seen:
            raise ValueError(f"Two measurements of {', '.join(map(str, place))}.")
        seen.add(place)


def rows_of_texts(split: Any) -> Iterator[Row]:
    """Yield the number of documents and classes and their words, all parts together: DocSplit v1, Table 1."""
    from docsplit.evaluation.results.report import text_statistics

    texts = [text for part in split.texts.values() for text in part]
    (counted,) = text_statistics("", {"all": texts}, len(split.class_names))
    for name in ("documents", "classes", "mean_words", "median_words", "max_words"):
        yield ABOUT | {"head": DATA_SETS, "metric": name.replace("_", " "), "value": float(counted[name])}


def rows_of_svd(data_args: LabelledArguments, args: ProbeArguments) -> list[Row]:
    """Classify TF-IDF and SVD features as the vectors of an encoder are."""
    from docsplit.data.sets.labelled import load_labelled
    from docsplit.evaluation.analysis.clustering import tfidf_svd
    from docsplit.evaluation.classification import probe
    from docsplit.evaluation.compare import TFIDF_FACTS
    from docsplit.evaluation.heads.frozen import tfidf_features

    split = load_labelled(data_args, args.seed)
    features = tfidf_svd(dict(zip(split.texts, tfidf_features(*split.texts.values()))))
    return list(rows_of(list(probe(SVD, features, TFIDF_FACTS, split, args))))


def parse_random(words: Sequence[str]) -> argparse.Namespace:
    """Parse the options of an encoder of random weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--like", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    return parser.parse_args(words)


def write_random_encoder(options: argparse.Namespace) -> None:
    """Write an encoder of random weights with the form and the tokenizer of another one."""
    import torch
    from transformers import AutoModel

    from docsplit.data.tokenization import load_tokenizer
    from docsplit.modeling.checked_files import read_config

    torch.manual_seed(options.seed)
    AutoModel.from_config(read_config(options.like)).save_pretrained(options.output_dir)
    load_tokenizer(options.like).save_pretrained(options.output_dir)


def parse(argv: Sequence[str]) -> tuple[str, Any]:
    """Return the kind of evaluation, and its options: of encoders, of data, and its own."""
    words = list(argv)
    place = words.index("--evaluation")
    kind = words[place + 1]
    del words[place : place + 2]
    if kind == RANDOM:
        return kind, parse_random(words)
    return kind, parse_arguments((EncoderArguments, *EVALUATIONS[kind][1]), description=str(__doc__), argv=words)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write rows.json into --output_dir."""
    kind, parsed = parse(sys.argv[1:] if argv is None else argv)
    if kind == RANDOM:
        write_random_encoder(parsed)
        return
    encoder_args, data_args, args = parsed
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if encoder_args.model_name_or_path == [SVD]:
        rows = rows_of_svd(data_args, args)
    else:
        from docsplit.evaluation.compare import compare
        from docsplit.release.model_card import add_results

        evaluation = evaluation_of(kind, data_args, args)
        compare(evaluation, encoder_args, add_results)
        rows = list(rows_of_analysis(evaluation, folder) if kind == "analysis" else rows_of(evaluation.results))
    write_text(folder / "rows.json", json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
