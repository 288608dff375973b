"""Texts that others may have put into the files that cards and reports are made from.

`PLACES` puts a text into each place where one of others ends in Markdown or HTML, and returns what was written.
Whatever the text is, the page has the `structure` that it has with a harmless word.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from docsplit.evaluation.analysis.report import Figure, ReportSection, write_report
from docsplit.evaluation.results.report import (
    Report,
    ResultsTable,
    comparisons,
    rows,
    text_statistics,
    write_comparison,
)
from docsplit.evaluation.results.result import CLASSIFICATION
from docsplit.release.model_card import write_card
from tests.evaluation.results.examples import make_result

HARMLESS = "harmless"
PAYLOADS = {
    "HTML": '<script>alert(1)</script> x" onerror="alert(1)"><img src=x onerror=alert(1)> <!-- <b>x</b> --> <?php ?>',
    "a table": "a | b |\n|---|---|\n| c \\| d \\\\| e |",
    "code": "`a` ``b`` ```\n```html\n<b>x</b>\n```",
    "code and bars": "`|` \\| \\` `` <i>x</i>",
    "links": "[x](javascript:alert(1)) ![y](http://evil/p.png) <http://evil> [z]: http://evil\n[z] [^1]: note",
    "blocks": "x\n\n# Stolen\n\n- a\n1. b\n> c\n\n---\n\n    code\n\n<div>x</div>\n",
    "the beginning of a line": "- a", "a number": "1. a", "a quotation": "> a", "a rule": "---", "a heading": "# a",
    "front matter": "x\n---\nlicense: stolen\ntags: [stolen]\n---\n",
    "emphasis and entities": "*a* **b** _c_ __d__ ~~e~~ <em>f</em> &lt;script&gt; &#60;b&#62; &copy; &amp;lt;",
    "templates": "{{ 7 * 7 }} {% raw %} {# x #} <b>",
    "letters that no one sees": "a\x1b[31m\x00\x07\u202eb\u2066<u>c</u>\u2028d\x85e\ud800",
    "backslashes": "a\\ \\\\ \\<b>x</b> \\* \\_ \\| \\",
}  # fmt: skip
_CODE_OR_TEXT = {"text", "code_inline", "softbreak", "text_special"}


def structure(text: str) -> list[str]:
    """List the blocks of a page and what is in its lines besides text: equal lists, equal pages but for words."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(_body(text))
    kinds = []
    for token in tokens:
        kinds.append(f"{token.type} {token.tag}")
        kinds += [child.type for child in token.children or () if child.type not in _CODE_OR_TEXT]
    return kinds


def raw_html(text: str) -> list[str]:
    """List the HTML of a page that a renderer would hand on."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(_body(text))
    tokens += [child for token in tokens for child in token.children or ()]
    return [token.content for token in tokens if token.type in ("html_block", "html_inline")]


def _body(text: str) -> str:
    return re.sub(r"\A---\n.*?\n---\n", "", text, count=1, flags=re.DOTALL)


# --- The files ---

RUN: dict[str, Any] = {
    "recipe": "small.yaml", "options": {"corpus": "c", "view": "crop", "model_name_or_path": "m"}, "local": [],
    "start": {"base_model": "user/base", "license": "other", "license_name": "mit", "license_link": "l",
              "language": ["en"]},
    "hardware": "a CPU", "processes": 1, "versions": {"torch": "2"}, "commit": "abc", "hub_model_id": "user/model",
}  # fmt: skip
RESULTS: dict[str, Any] = {
    "documents_used": 7, "documents_dropped": 6, "documents_dropped_empty": 5, "global_step": 4, "train_tokens": 9,
    "train_runtime": 7.4, "train_tokens_per_second": 12.0, "train_loss": 1.2, "documents_truncated_share": 0.2,
    **{f"{prefix}_{name}": 0.5 for prefix in ("probe_before", "probe_after", "tfidf")
       for name in ("5shot_accuracy", "5shot_accuracy_std", "accuracy")}, "probe_classes": 4,
    "probe_test_documents": 19,
}  # fmt: skip
ROW: dict[str, Any] = {
    "encoder": "me", "head": "mlp", "shots": None, "features": "raw", "runs": 3, "pretraining_seeds": 1,
    "test_documents": 20, "warning": "one class", "preset": "p", "num_parameters": 5, "accuracy_mean": 0.5,
    "accuracy_std": 0.1, "macro_f1_mean": 0.5, "macro_f1_std": 0.1, "seen_in_pretraining_share": 0.1,
    "near_duplicate_share": 0.2, "max_seq_length": 5, "members": ["me"],
}  # fmt: skip
EVALUATION: dict[str, Any] = {
    "title": "Probe", "dataset": "news", "task": CLASSIFICATION.to_json(), "encoder": "me",
    "rows": [ROW, ROW | {"encoder": "other", "members": []}],
}  # fmt: skip
MEASURED = {"5shot_accuracy": 0.5, "accuracy": 0.25}
ADAPTED: dict[str, Any] = {
    "kind": "words", "kept": "words", "weight": 1.0, "encoder": "user/encoder", "documents": "d",
    "start": {"base_model": "user/base", "license": "mit", "language": "en"}, "documents_are_local": False,
    "facts": {"documents": 4, "empty": 3, "duplicates": 1, "without_pieces": 2, "pieces": 5, "penalty": 0.3,
              "neighbours": 2, "sublinear": True, "shares_explained": {"0.3": 0.4}},
    "recipe": "r", "probe": "p", "seconds": {"embed": 1.0}, "hardware": "a CPU", "versions": {"torch": "2"},
    "candidates": [{"name": "words", "weight": 1.0, "validation": MEASURED, "test": MEASURED}], "commit": "abc",
    "hub_model_id": "user/model",
}  # fmt: skip
CONTENTS = {"run.json": RUN, "all_results.json": RESULTS, "evaluations/e/results.json": EVALUATION}


def write_files(folder: Path, contents: dict[str, Any]) -> None:
    """Write JSON files into a folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def everywhere(content: Any, text: str) -> Any:
    """Put a text into the place of each text of JSON, but for kinds and measures, and among names that are open."""
    if isinstance(content, list):
        return [everywhere(each, text) for each in content]
    if not isinstance(content, dict):
        return text if isinstance(content, str) else content
    kept = {"kind", "main", "columns", "paired_test", "baseline_opponent", "head_pairs", "view"}
    changed = {key: value if key in kept else everywhere(value, text) for key, value in content.items()}
    return changed | ({text: text} if {"corpus", "torch"} & content.keys() else {})


# --- The places ---


def _card(*names: str) -> Callable[[Path, str], str]:
    """Put a text everywhere into some files of a checkpoint."""

    def write(folder: Path, text: str) -> str:
        contents = CONTENTS | ({"adapt.json": ADAPTED} if "adapt.json" in names else {})
        dropped = {"all_results.json": RESULTS | {f"documents_dropped_{text}": 5}}
        write_files(folder, contents | dropped | {name: everywhere(contents[name], text) for name in names})
        return write_card(folder)

    return write


def _earlier_card(folder: Path, text: str) -> str:
    text = text.encode(errors="replace").decode()
    keys = ("license_name", "license_link", "base_model")
    front = {"license": text, "tags": [text], "language": [text], **dict.fromkeys(keys, text)}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(front)}---\n{text}\n", encoding="utf-8")
    write_files(folder, CONTENTS | {"run.json": RUN | {"start": {}}})
    return write_card(folder)


def _evaluation_folder(folder: Path, text: str) -> str:
    name = text.replace("/", "_").replace("\0", "_").encode(errors="replace").decode()[:100]
    place = folder / "evaluations" / f"x{name}"
    write_files(place, {"results.json": EVALUATION})
    (place / "few_shot.png").touch()
    write_files(folder, CONTENTS)
    return write_card(folder)


def _report(folder: Path, text: str) -> str:
    results = [make_result(f"NAME={text}", 2.0), make_result(text, 1.0)]
    said: dict[str, Any] = {"data": text, "heading": text, "notes": [text]}
    said["statistics"] = text_statistics(text, {text: ["a b"]}, 2)
    write_comparison(folder, Report(CLASSIFICATION, rows(results), comparisons(results), **said))
    return (folder / "results.md").read_text(encoding="utf-8")


def _analysis(folder: Path, text: str, page: str = "analysis.md") -> str:
    (folder / "x.png").write_bytes(b"")
    figure = Figure(text, text, folder / "x.png")
    section = ReportSection(text, [text], [ResultsTable([text, text], [[text, text]], title=text)], [figure])
    write_report(folder, text, [section], {})
    return (folder / page).read_text(encoding="utf-8")


PLACES: dict[str, Callable[[Path, str], str]] = {
    "run.json": _card("run.json"),
    "results.json": _card("evaluations/e/results.json"),
    "adapt.json": _card("adapt.json"),
    "an earlier card": _earlier_card,
    "the folder of an evaluation": _evaluation_folder,
    "results.md": _report,
    "analysis.md": _analysis,
    "analysis.html": partial(_analysis, page="report.html"),
}
