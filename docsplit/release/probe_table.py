"""The probe of a pretraining run as a table: the frozen encoder before and after, beside TF-IDF."""

from docsplit.evaluation.results.report import Json, Table


def table_of_probe(results: Json) -> Table:
    """Return the probe's accuracies: random start, after pretraining, TF-IDF."""
    selected = "probe_validation_documents" in results  # runs of before had C = 1, and no validation documents
    body = []
    for name, prefix in (
        ("before pretraining", "probe_before"),
        ("after pretraining", "probe_after"),
        ("TF-IDF", "tfidf"),
    ):
        few, spread = results[f"{prefix}_5shot_accuracy"], results[f"{prefix}_5shot_accuracy_std"]
        chosen = [f"{results[f'{prefix}_5shot_c']:g}, {results[f'{prefix}_c']:g}"] if selected else []
        body.append((name, f"{few:.3f} ± {spread:.3f}", f"{results[f'{prefix}_accuracy']:.3f}", *chosen))
    header = ["logistic regression on", "5 labels a class", "all labels", *(["C of these"] if selected else [])]
    return Table(header, body, title="The frozen encoder before and after")


def probe_table(results: Json) -> str:
    """Return a Markdown table of the probe, and what is to be known of it."""
    if "probe_after_accuracy" not in results:
        return "No probe was asked for (--probe_corpus)."
    table = table_of_probe(results).markdown()
    spread_of = "± is the standard deviation over 10 draws of the labels."
    test = f"Accuracy over {results['probe_classes']} classes on {results['probe_test_documents']:,}"
    if "probe_validation_documents" not in results:
        return f"{table}\n\n{test} test documents; {spread_of}"
    return (
        f"{table}\n\n{test} sealed test documents, which neither training nor selection reads; "
        f"{spread_of} Selection, of C and of checkpoints if asked for, is on "
        f"{results['probe_validation_documents']:,} validation documents.{_seen_text(results)}"
    )


def _seen_text(results: Json) -> str:
    """Say how many test documents of the probe were seen in training; "" where nothing is known."""
    if "probe_seen_in_pretraining_share" not in results:
        return ""
    shares = (results[f"probe_{name}"] for name in ("seen_in_pretraining_share", "near_duplicate_share"))
    seen, near = ("unknown" if share is None else f"{100 * share:.1f} %" for share in shares)
    return f" Test documents seen in pretraining: {seen}; with near-duplicates: {near}."
