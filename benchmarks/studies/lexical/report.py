"""Does a start that knows the corpus's words last, and does a contrast add to it? Beside TF-IDF and LSA.

    python -m benchmarks.studies.lexical.report --data_dir DIR
    python -m benchmarks.studies.lexical.report --data_dir DIR --list

The cells are those of study.yaml. DIR has the folders 20newsgroups, aan and wikipedia; docstrings are built in. The
study of adaptation measures encoders, and `adapt.py --static`, on the same documents.
"""

import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.engine.cells import run_study
from benchmarks.engine.results import Results
from docsplit.evaluation.results.markdown import markdown_table

COLUMNS = {
    ("docstrings", "5shot_accuracy"): "docstrings, 5 labels",
    ("docstrings", "accuracy"): "all labels",
    ("20newsgroups", "5shot_accuracy"): "newsgroup posts, 5 labels",
    ("20newsgroups", "accuracy"): "all labels",
    ("aan", "roc_auc"): "citations, ROC-AUC",
    ("search: wikipedia_titles", "ndcg_at_10"): "titles, nDCG@10",
}


def markdown(results: Results) -> str:
    """Return a table of means over seeds, in percent, ± the standard deviation, and what is missing."""
    values = defaultdict[tuple[str, str, str], list[float]](list)  # by method, set and metric
    for record in results.cells.values():
        kind = "" if record.name.startswith("words") else ", lexical" if "lexical=True" in record.name else ", random"
        for row in record.rows:
            values[row["method"] + kind, row["data"], row["metric"]].append(row["value"])
    methods = list(dict.fromkeys(method for method, _, _ in values))
    body = [[method, *(_cell(values.get((method, *column), [])) for column in COLUMNS)] for method in methods]
    table = markdown_table(["percent; 64 wide unless noted", *COLUMNS.values()], body)
    missing = f"Cells not run: {len(results.not_run)}; failed: {len(results.failed)}."
    return f"{table}\n\n± is the standard deviation over seeds, where there are several. {missing}\n"


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def main() -> None:
    """Run the study."""
    folder = {"required": True, "help": "folder with a folder of each data set"}
    run_study(Path(__file__).with_name("study.yaml"), __doc__, {"data_dir": folder}, markdown)


if __name__ == "__main__":
    main()
