"""Cards of encoders that nobody has trained: made of recipes and docs/papers, and their commands work."""

import dataclasses
import json
import re
import shlex
from collections import Counter

import pytest
import yaml
from huggingface_hub import ModelCard

import convert_to_longformer
import reproduce
from benchmarks.engine.study import Study
from benchmarks.studies.reproduction import cards
from benchmarks.studies.reproduction.card_sources import decisions, patterns, settings_of, training_of, where_from
from benchmarks.studies.reproduction.cards import CARDS, RECIPE, card_text, write_cards
from benchmarks.studies.reproduction.plan import make_plan, papers_rows, read_recipe
from docsplit.evaluation.results.paper_numbers import read_paper
from docsplit.runtime.options import parse_arguments
from docsplit.training.arguments import ARGUMENTS, OPTIONS_OF_OBJECTIVES
from tests.processes import ROOT
from tests.release.hub_rules import problems

RECIPES = (
    *("docsplit_bert", "docsplit_long", "longformer_bregman", "longformer_da_simcse"),
    *("graph_document", "graph_document_retrieval"),
)


@pytest.fixture(scope="module")
def plan():
    return make_plan(read_recipe(ROOT / RECIPE), with_all_data=True)


@pytest.fixture(scope="module")
def texts(plan):
    return {card.name: card_text(plan, card) for card in CARDS}


def commands(text):
    """The indented lines of a card, as words."""
    return [shlex.split(line) for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE)]


def test_the_committed_cards_are_what_the_command_writes(tmp_path):
    for path in write_cards(tmp_path):
        committed = ROOT / "model_cards" / path.parent.name / "README.md"
        assert committed.read_bytes() == path.read_bytes(), "python -m benchmarks.studies.reproduction.cards"
    untrained = {path.parent.name for path in (ROOT / "model_cards").glob("*/README.md")
                 if "**Not trained yet.**" in path.read_text()}  # fmt: skip
    assert untrained == {card.name for card in CARDS}


def tables(text):
    """(paper, number, part, rows) of each table of figures in a card; a row is its name and its cells."""
    title, source = (
        r"^\*\*[^*]*?, Table (\w+)(?:, ([^*]*))?\*\*: .*",
        r"<!-- from \.\./\.\./docs/papers/(\w+)\.json -->",
    )
    found = re.findall(rf"{title}\n\n{source}\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    for number, part, paper, table in found:
        rows = [[cell.strip().strip("*") for cell in line.strip("|\n").split("|")] for line in table.splitlines()[2:]]
        yield paper, number, part, {name: cells for name, *cells in rows}


@pytest.mark.parametrize(("card", "count"), zip(CARDS, (3, 3, 5, 5)), ids=[card.name for card in CARDS])
def test_figures_are_those_of_docs_papers_digit_for_digit(card, count, texts):
    shown = list(tables(texts[card.name]))
    assert len(shown) == count == texts[card.name].count("\n| paper (other weights and data) ")
    for paper, number, part, rows in shown:
        contents = json.loads((ROOT / "docs" / "papers" / f"{paper}.json").read_text(), parse_float=str, parse_int=str)
        (table,) = [one for one in contents["tables"] if (one["table"], one.get("part", "")) == (number, part)]
        assert rows == {name: [value or "" for value in values] for name, values in table["rows"].items()}


def test_each_table_of_an_encoder_s_paper_with_a_row_of_its_own_is_shown(plan, texts):
    """But for the earlier version's table of the same numbers, and figures that stand for no number of results."""
    for card in CARDS:
        own = {row for name in card.methods for row in papers_rows(plan.recipe["methods"][name])}
        shown = {place[:3] for place in tables(texts[card.name])}
        for paper in {place[0] for place in shown}:
            with_own = {(paper, one.table, one.part) for one in read_paper(paper).tables if own & one.rows.keys()}
            assert {place for place in with_own - shown if place[:2] != ("docsplit_v1", "2")} == set()


def test_a_changed_figure_changes_the_card(plan, texts, monkeypatch):
    paper = read_paper("graph")
    first = paper.tables[0]
    changed = dataclasses.replace(
        first, rows={**first.rows, "Graph-roberta": [0.438, *first.rows["Graph-roberta"][1:]]}
    )
    other = dataclasses.replace(paper, tables=[changed, *paper.tables[1:]])
    monkeypatch.setattr(cards, "read_paper", {"graph": other}.__getitem__)
    before, after = texts["graph_document"], card_text(plan, CARDS[-1])
    (line,) = {*after.splitlines()} - {*before.splitlines()}
    assert "0.438" in line


# --- Settings ---


@pytest.mark.parametrize("recipe", RECIPES)
def test_settings_are_those_that_yaml_reads(recipe):
    path = ROOT / "recipes" / f"{recipe}.yaml"
    assert {one.name: one.value for one in settings_of(path)} == yaml.safe_load(path.read_text())
    assert all(yaml.safe_load(one.text) == one.value for one in settings_of(path))
    assert "section" in where_from(path)


def test_comments_of_settings(tmp_path):
    lines = ["# about all", "view: simcse  # paper: 3", "", "# twice", "# written", "corpus: a/b:c", "mlm_weight: 0"]
    (tmp_path / "r.yaml").write_text("\n".join(lines))
    view, corpus, weight = settings_of(tmp_path / "r.yaml")
    assert (view.text, view.source, view.note) == ("simcse", "paper: 3", "")
    assert (corpus.text, corpus.source, corpus.note) == ("a/b:c", "", "twice written")
    assert (weight.value, weight.source, weight.note) == (0, "", "")
    with pytest.raises(ValueError, match="does not say where its values are from"):
        where_from(tmp_path / "r.yaml")


def test_what_is_open_is_what_the_paper_map_decides():
    ((name, decided),) = decisions(["Bregman: lambda 2"])
    assert f"| {name} | {decided} |" in (ROOT / "docs" / "paper_map.md").read_text()
    with pytest.raises(ValueError, match="no open question lambda 3"):
        decisions(["lambda 3"])


# --- Commands, hours and front matter ---


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_patterns_of_only_name_the_cells_of_the_card_and_no_others(card, plan, tmp_path):
    """All that the card's methods are trained and measured by; other cells only where one of these needs them."""
    everything = Study(plan.study, tmp_path, {"data_dir": str(tmp_path)})
    expected = {cell.name for cell in everything.cells()[0].values() if cell.fields["method"] in card.methods}
    words = [pattern for name in card.methods for pattern in patterns(name)]
    for pattern in words:
        assert any(pattern in name for name in expected), pattern
    chosen = Study(plan.study, tmp_path, {"data_dir": str(tmp_path)}, only=words).cells()[0].values()
    needed = {other.name for cell in chosen for other in cell.needs.values()}
    names = {cell.name for cell in chosen}
    assert expected <= names
    assert names - expected <= needed


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A folder with the recipes, and MIMIC's file, which the Hub has not; returns a function that parses words."""
    (tmp_path / "data" / "mimic").mkdir(parents=True)
    (tmp_path / "data" / "mimic" / "train.jsonl").touch()
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)

    def parse(parse_options, words):
        monkeypatch.setattr("sys.argv", words)
        return parse_options()

    return parse


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_commands_parse_and_make_what_the_next_ones_read(card, plan, texts, reader):
    counts, made = Counter(), set()
    for words in commands(texts[card.name]):
        (place,) = [at for at, word in enumerate(words) if word.endswith(".py") or word.startswith("docsplit.")]
        script, after = words[place], words[place + 1 :]
        counts[script] += 1
        if script == "convert_to_longformer.py":
            converted = reader(convert_to_longformer.parse_options, words[place:])
            assert (converted.max_positions, converted.attention_window) == (4096, 512)
            made.add(converted.out.as_posix())
        elif script == "run_docsplit_pretraining.py":
            parse_arguments(ARGUMENTS, "", after, chosen_by=OPTIONS_OF_OBJECTIVES)
            start = yaml.safe_load((ROOT / after[0]).read_text())["model_name_or_path"]
            if "--model_name_or_path" in after:
                start = after[after.index("--model_name_or_path") + 1]
            assert not start.startswith("outputs/") or start in made
        elif script == "reproduce.py":
            assert reader(reproduce.parse_options, words[place:]).recipe == RECIPE
        else:
            assert after[0].startswith(f"{cards.FOLDER}/cells/KEY/encoder")
    per_training = {1: 1, 8: 2}  # in one process; and in eight, where the recipe starts eight
    expected = sum(per_training[training_of(plan, name).processes] for name in card.methods)
    assert counts["run_docsplit_pretraining.py"] == expected
    assert counts["reproduce.py"] == 2


def test_hours_are_those_that_the_dry_run_projects(plan, texts, tmp_path):
    """Summed over the cells of the methods, one by one."""
    for card in CARDS:
        cells = [cell for cell in Study(plan.study, tmp_path, {"data_dir": str(tmp_path)}).cells()[0].values()
                 if cell.fields["method"] in card.methods]  # fmt: skip
        hours = sum(plan.costs[cell.group].hours(plan.recipe["speed"]) for cell in cells)
        assert f"about {hours:.0f} hours: {len(cells)} cells" in " ".join(texts[card.name].split())


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_the_hub_takes_the_card_which_has_no_numbers_of_its_own(card, plan, texts):
    data = ModelCard(texts[card.name]).data
    assert problems(texts[card.name]) == []
    assert (data.model_name, data.eval_results, data.license) == (card.name, None, None)
    assert not {"model-index", "widget"} & data.to_dict().keys()
    starts = {training_of(plan, name).start for name in card.methods}
    assert {*([data.base_model] if isinstance(data.base_model, str) else data.base_model)} == starts
    assert all(f"`{start}`" in texts[card.name] for start in starts)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_links_lead_to_files(card, texts):
    for target in re.findall(r"\]\(([^)#]+)\)", texts[card.name]):
        assert target.startswith("https://huggingface.co/") or (ROOT / "model_cards" / card.name / target).exists()
