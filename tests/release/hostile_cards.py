"""Texts and values that others may have put into the files that cards and reports are made from.

`texts` puts a text into each place where one of others ends in Markdown or HTML, one place after the other, and
returns what was written. Whatever the text is, the page has the `structure` that it has with a harmless word.
`wrong_values` gives each value of each file another type.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from docsplit.evaluation.analysis.report import Figure, Section, write_report
from docsplit.evaluation.results.report import (
    Report,
    Table,
    comparisons,
    rows,
    text_statistics,
    write_comparison,
)
from docsplit.evaluation.results.result import CLASSIFICATION
from docsplit.release.adapted_card import ADAPTATION_FILE, Adaptation, Candidate
from docsplit.release.model_card import write_card
from docsplit.release.run_record import Licence, Start
from tests.evaluation.results.examples import make_result

HARMLESS = "harmless"
PAYLOADS = {
    "a script": "<script>alert(1)</script>",
    "an image": 'x" onerror="alert(1)"><img src=x onerror=alert(1)>',
    "a comment": "<!-- <b>x</b> --> <?php ?> <![CDATA[x]]>",
    "a table": "a | b |\n|---|---|\n| c \\| d \\\\| e |",
    "code": "`a` ``b`` ```\n```html\n<b>x</b>\n```",
    "code and bars": "`|` \\| \\` `` <i>x</i>",
    "links": "[x](javascript:alert(1)) ![y](http://evil/p.png) <http://evil> [z]: http://evil\n[z] [^1]: note",
    "blocks": "x\n\n# Stolen\n\n- a\n1. b\n> c\n\n---\n\n    code\n\n<div>x</div>\n",
    "the beginning of a line": "- a", "a number": "1. a", "a quotation": "> a", "a rule": "---", "a heading": "# a",
    "front matter": "x\n---\nlicense: stolen\ntags: [stolen]\n---\n",
    "emphasis": "*a* **b** _c_ __d__ ~~e~~ <em>f</em>",
    "entities": "&lt;script&gt; &#60;b&#62; &copy; &amp;lt;",
    "templates": "{{ 7 * 7 }} {% raw %} {# x #} <b>",
    "letters that no one sees": "a\x1b[31m\x00\x07\u202eb\u2066<u>c</u>\u2028d\x85e\ud800",
    "backslashes": "a\\ \\\\ \\<b>x</b> \\* \\_ \\| \\",
}  # fmt: skip
WRONG: tuple[Any, ...] = (5, -1.5, True, "text", "<b>x</b>", [], [5], ["a", 5], {}, {"a": 5}, None, [[[[[]]]]])

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


def front_matter(text: str) -> dict[str, Any]:
    """Read the YAML at the top of a card; {} without any."""
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    return yaml.safe_load(match[1]) if match else {}


def _body(text: str) -> str:
    return re.sub(r"\A---\n.*?\n---\n", "", text, count=1, flags=re.DOTALL)


# --- The files ---

RUN: dict[str, Any] = {
    "recipe": "small.yaml", "options": {"corpus": "c", "view": "crop", "model_name_or_path": "m"}, "local": ["corpus"],
    "start": {"base_model": "user/base", "license": "mit", "license_name": "n", "license_link": "l",
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
    "kind": "words", "kept": "words", "weight": 1.0, "encoder": "user/encoder", "language": ["en"], "documents": "d",
    "start": {"base_model": "user/base", "licence": {"license": "mit"}, "language": "en"}, "documents_are_local": True,
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


def _paths(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value of JSON, the inner ones too."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _paths(value, (*path, key))


def with_value(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return JSON with another value at one place."""
    changed = copy.deepcopy(content)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


# --- Texts ---


def _in_run(*path: Any) -> Callable[[Path, str], str]:
    return _card("run.json", RUN, path)


def _card(file: str, content: Any, path: tuple[Any, ...]) -> Callable[[Path, str], str]:
    """Put a text at a place of a file of a checkpoint."""

    def write(folder: Path, text: str) -> str:
        write_files(folder, CONTENTS | {file: with_value(content, path, text)})
        return write_card(folder)

    return write


def _earlier_card(key: str, as_list: bool = False) -> Callable[[Path, str], str]:
    def write(folder: Path, text: str) -> str:
        text = text.encode(errors="replace").decode()
        values = {"license": "other", key: [text] if as_list else text}
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump(values)}---\n{text}\n", encoding="utf-8")
        write_files(folder, CONTENTS)
        return write_card(folder)

    return write


def _adapted(*path: Any) -> Callable[[Path, str], str]:
    def write(folder: Path, text: str) -> str:
        write_files(
            folder, {ADAPTATION_FILE: with_value(ADAPTED, path, text), "evaluations/e/results.json": EVALUATION}
        )
        text = write_card(folder)
        (folder / ADAPTATION_FILE).unlink()
        return text

    return write


def _adapted_name(folder: Path, text: str) -> str:
    record = Adaptation(
        kind="static", kept=text, weight=None, encoder=text, start=Start(text, Licence(text, text, text)),
        language=text, documents=text, documents_are_local=False, facts=None, probe=text, recipe=text, commit=text,
        candidates=[Candidate(text, 0.5, MEASURED, MEASURED)], seconds={text: 1.0}, hardware=text,
        versions={text: text},
    )  # fmt: skip
    record.write(folder)
    card = write_card(folder, "user/" + text)
    (folder / ADAPTATION_FILE).unlink()
    return card


def _address(folder: Path, text: str) -> str:
    write_files(folder, CONTENTS)
    return write_card(folder, text)


def _evaluation_folder(folder: Path, text: str) -> str:
    name = text.replace("/", "_").replace("\0", "_").encode(errors="replace").decode()[:100]
    place = folder / "evaluations" / f"x{name}"
    write_files(place, {"results.json": EVALUATION})
    (place / "few_shot.png").touch()
    write_files(folder, CONTENTS)
    return write_card(folder)


def _report(change: Callable[[Report, str], Report], name: str | None = None) -> Callable[[Path, str], str]:
    def write(folder: Path, text: str) -> str:
        results = [make_result((name and f"{name}{text}") or text, 2.0), make_result("other", 1.0)]
        report = change(Report(CLASSIFICATION, rows(results), comparisons(results)), text)
        write_comparison(folder, report)
        return (folder / "results.md").read_text(encoding="utf-8")

    return write


def _statistics(report: Report, text: str) -> Report:
    return replace(report, statistics=text_statistics(text, {text: ["a b"]}, 2))


def _analysis(folder: Path, text: str, page: str = "analysis.md") -> str:
    (folder / "x.png").write_bytes(b"")
    figure = Figure(text, folder / "x.png")
    section = Section(text, [text], [Table([text, text], [[text, text]], title=text)], [figure])
    write_report(folder, text, [section], {})
    return (folder / page).read_text(encoding="utf-8")


PLACES: dict[str, Callable[[Path, str], str]] = {
    **{f"run.json {' '.join(map(str, path))}": _in_run(*path) for path in (
        ("recipe",), ("options", "corpus"), ("options", "view"), ("options", "model_name_or_path"), ("hardware",),
        ("versions", "torch"), ("commit",), ("hub_model_id",), ("start", "base_model"),
        ("start", "license"), ("start", "license_name"), ("start", "license_link"), ("start", "language", 0),
    )},
    "run.json a new option": lambda folder, text: _in_run("options", text)(folder, "value"),
    "all_results.json a new count": lambda folder, text: _dropped(folder, text),
    **{f"results.json {' '.join(map(str, path))}": _card("evaluations/e/results.json", EVALUATION, path) for path in (
        ("title",), ("dataset",), ("encoder",), ("rows", 0, "encoder"), ("rows", 0, "head"), ("rows", 0, "preset"),
        ("rows", 0, "features"), ("rows", 0, "warning"), ("task", "note"), ("task", "items"),
        ("task", "head_title"), ("task", "runs"), ("task", "measures", "accuracy"), ("task", "name"),
    )},
    **{f"earlier card {key}": _earlier_card(key) for key in ("license", "license_name", "license_link", "base_model")},
    "earlier card tags": _earlier_card("tags", as_list=True),
    "earlier card language": _earlier_card("language", as_list=True),
    "the address": _address,
    "the folder of an evaluation": _evaluation_folder,
    **{f"adapt.json {' '.join(map(str, path))}": _adapted(*path) for path in (
        ("encoder",), ("documents",), ("recipe",), ("probe",), ("hardware",), ("commit",), ("candidates", 0, "name"),
    )},
    "adapt.json everywhere": _adapted_name,
    "results.md encoder": _report(lambda report, text: report),
    "results.md group": _report(lambda report, text: report, name="NAME="),
    "results.md data": _report(lambda report, text: replace(report, data=text)),
    "results.md heading": _report(lambda report, text: replace(report, heading=text)),
    "results.md notes": _report(lambda report, text: replace(report, notes=[text])),
    "results.md statistics": _report(_statistics),
    "analysis.md": _analysis,
    "analysis.html": partial(_analysis, page="report.html"),
}  # fmt: skip


def _dropped(folder: Path, text: str) -> str:
    write_files(folder, CONTENTS | {"all_results.json": RESULTS | {f"documents_dropped_{text}": 5}})
    return write_card(folder)


def wrong_values() -> Iterator[tuple[str, tuple[Any, ...], Any, dict[str, Any]]]:
    """Yield file, place, value and the contents of all files, with each value of a checkpoint's files replaced."""
    for file, content in (*CONTENTS.items(), (ADAPTATION_FILE, ADAPTED)):
        for number, path in enumerate(_paths(content)):
            for value in (WRONG[number % len(WRONG)], WRONG[(number * 5 + 3) % len(WRONG)], WRONG[(7 * number) % 12]):
                rest = {} if file == ADAPTATION_FILE else CONTENTS
                yield file, path, value, rest | {file: with_value(content, path, value)}
