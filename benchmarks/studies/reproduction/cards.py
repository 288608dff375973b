"""Cards of the papers' encoders, before anyone has trained them: what each needs, and what its paper reports.

    python -m benchmarks.studies.reproduction.cards             # writes model_cards/NAME/README.md

A card is made of recipes/reproduction/paper.yaml and the recipes that it names, docs/papers, and the second table of
docs/paper_map.md. `CARDS` says which methods of the recipe a card is about, and adds one sentence. Tests compare the
committed cards byte for byte, so a changed recipe or figure needs this command. Once an encoder is trained, its own
card (docsplit/release/model_card.py) takes the place of the one made here.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from benchmarks.engine.cells import words_of
from benchmarks.studies.reproduction.paper_numbers import COLUMN, PaperTable, read_paper
from benchmarks.studies.reproduction.plan import (
    DATA,
    Plan,
    launch_of,
    make_plan,
    options_of,
    papers_rows,
    processes_of,
    read_recipe,
    training_group,
)
from benchmarks.studies.reproduction.tables import TABLES
from docsplit.evaluation.results import result as task
from docsplit.evaluation.results.markdown import Markdown, bold, bullets, code, inline, markdown_table
from docsplit.release.model_card import PAPERS
from docsplit.runtime.files import ROOT, write_text

RECIPE = "recipes/reproduction/paper.yaml"
FOLDER = "outputs/reproduction_paper"  # of the commands
TEMPLATE = Path(__file__).with_name("card_template.md")
BATCH = "per_device_train_batch_size"
OF_THE_MACHINE = {  # options of recipes that change no result
    *("output_dir", "logging_steps", "save_steps", "save_total_limit"),
    *("preprocessing_num_workers", "dataloader_num_workers"),
}
MEASURES = {
    name: title
    for one in (task.LINKS, task.CLASSIFICATION, task.RANKING, task.CLUSTERING)
    for name, title in one.measures.items()
}
SOURCES = re.compile(r'Values marked "paper" are from (.*?); values without a source are our choice')


@dataclass(frozen=True)
class Training:
    """A method that a card is about, as the recipe trains it."""

    name: str
    method: Mapping[str, Any]
    options: Mapping[str, Any]  # those of its recipe included
    start: str  # on the Hub
    longformer: str | None  # the method that makes a Longformer of the start, if one does
    conversion: Mapping[str, Any]  # and its options
    processes: int
    seeds: int
    cells: int  # of one seed, its training among them
    train_hours: float  # of one seed
    measure_hours: float  # likewise, of all that is measured

    @property
    def recipe(self) -> str:
        """Return the file of its settings."""
        return str(self.method["recipe"])

    @property
    def hours(self) -> float:
        """Return the hours of all seeds."""
        return self.seeds * (self.train_hours + self.measure_hours)


@dataclass(frozen=True)
class Setting:
    """A setting of a recipe, and what its comments say."""

    name: str
    value: Any
    text: str  # of the value, as it is written
    source: str  # the comment behind it
    note: str  # the comment above it; the first one of a recipe is about all


def settings_of(recipe: Path) -> list[Setting]:
    """Read the settings of a recipe in their order, each with its comments."""
    settings, above = [], list[str]()
    for line in recipe.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            above.append(line.removeprefix("#").strip())
            continue
        if line.strip():
            (name, value) = next(iter(yaml.safe_load(line).items()))
            text, _, source = line.removeprefix(f"{name}:").partition(" # ")
            settings.append(Setting(name, value, text.strip(), source.strip(), " ".join(above) if settings else ""))
        above = []
    return settings


def where_from(recipe: Path) -> str:
    """Return the sections of the paper that a recipe's settings are from, as its first comment names them."""
    lines = recipe.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    found = SOURCES.search(comment)
    assert found is not None, f"{recipe} does not say where its values are from"
    return found[1]


def decisions(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return what docs/paper_map.md decides of each open question, as Markdown."""
    page = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8").partition("\n| open | decided |\n")[2]
    known = dict(line.strip("| ").split(" | ", 1) for line in page.splitlines() if line.startswith("| "))
    return [(name, known[name]) for name in names]


def training_of(plan: Plan, name: str) -> Training:
    """Return a method of the recipe as it is trained."""
    recipe, method = plan.recipe, plan.recipe["methods"][name]
    origin = recipe["methods"].get(method["from"])
    options = options_of({"recipe": method["recipe"], "options": method["options"]})
    measured = [group for (_, _, one), group in plan.evaluated.items() if one == name]
    return Training(
        name,
        method,
        options | {"corpus": method.get("corpus", recipe["corpus"])},
        method["from"] if origin is None else origin["from"],
        None if origin is None else method["from"],
        {} if origin is None else origin["convert"],
        processes_of(launch_of(recipe, method)),
        len(method.get("seeds") or recipe["seeds"]),
        1 + len(measured),
        plan.costs[training_group(name)].hours(recipe["speed"]),
        sum(plan.costs[group].hours(recipe["speed"]) for group in measured),
    )


def patterns(name: str) -> list[str]:
    """Return what `reproduce.py --only` takes to train a method, and to measure it."""
    return [f"{training_group(name)} seed", f": {name} seed"]


@dataclass(frozen=True)
class PaperCard:
    """A card to be made.

    Attributes:
        name: of its folder in model_cards.
        methods: of the recipe, that it is about: the settings of the first one are told whole.
        open_questions: rows of "Open in the papers" of docs/paper_map.md.
    """

    name: str
    what: str
    methods: Sequence[str]
    open_questions: Sequence[str]


CARDS = (
    PaperCard(
        "docsplit_bert",
        "BERT-base that learns on Wikipedia to match the two halves of a document, whose sentences are divided at "
        "random: DocSplit_bert of the DocSplit papers.",
        ["DocSplit"],
        ["length, schedule, warm-up, weight decay", "truncation"],
    ),
    PaperCard(
        "docsplit_long",
        "Longformer-base that learns on Wikipedia to match the two halves of a document, of up to 4,096 tokens each, "
        "whose sentences are divided at random: DocSplit_long of the DocSplit papers.",
        ["DocSplit_long"],
        ["length, schedule, warm-up, weight decay", "a document of the Longformer: [CLS]"],
    ),
    PaperCard(
        "longformer_bregman",
        "A small legal BERT (for MIMIC BioBERT) made a Longformer, which learns by SimCSE and by an ensemble with a "
        "Bregman divergence: Longformer_DA + SimCSE + Bregman of the Bregman paper.",
        [f"SimCSE + Bregman, {data}" for data in ("SCOTUS", "ECtHR", "MIMIC")],
        ['Bregman: "temperature 0.1", of which loss', "Bregman: lambda 2"],
    ),
    PaperCard(
        "graph_document",
        "RoBERTa-base that reads passages of 100 words, and graph attention that makes them one document: "
        "Graph-roberta of the graph document paper, for classification and for search.",
        ["graph", "graph for retrieval", "graph of sections for retrieval"],
        ["graph attention: heads, self loops, activation, layer norm, dropout",
         '"only compute the loss over the long sub-documents"'],
    ),
)  # fmt: skip


def _link(name: str, kind: str) -> Markdown:
    """Return the name of weights (`kind` ""), or of data ("datasets/"), with their address if they are on the Hub."""
    if name.startswith(DATA):
        return code(name)
    return Markdown(f"[{code(name)}](https://huggingface.co/{kind}{name.partition(':')[0]})")


def _trainings(trainings: Sequence[Training]) -> str:
    """Tell in a table what each training starts from, reads and costs."""
    header = ["training", "starts from", "reads", "processes", "seeds", "hours of a training", "hours of measuring it"]
    rows = [
        [
            code(one.name), _link(one.start, ""), _link(one.options["corpus"], "datasets/"),
            str(one.processes), str(one.seeds), f"{one.train_hours:.1f}", f"{one.measure_hours:.1f}",
        ]
        for one in trainings
    ]  # fmt: skip
    return markdown_table(header, rows)


def _sets(plan: Plan, methods: Sequence[str]) -> str:
    """List the evaluations of the methods, each with its sets and where these are from."""
    places: dict[str, dict[str, str]] = {}
    for evaluation, data, method in plan.evaluated:
        if method in methods:
            own = plan.recipe["evaluations"][evaluation]["sets"][data]
            stated = options_of({"recipe": own.get("recipe"), "options": own.get("options", {})})
            files = [value for value in stated.values() if str(value).startswith(DATA)]
            places.setdefault(evaluation, {})[data] = stated.get("dataset_name") or files[0]
    lines = []
    for evaluation, sets in places.items():
        named = [f"{inline(data)} ({_link(place, 'datasets/')})" for data, place in sets.items()]
        lines.append(Markdown(f"{inline(evaluation)}: {', '.join(named)}"))
    return bullets(lines)


def _commands(training: Training, is_first: bool) -> Iterator[str]:
    """Yield the commands that make an encoder: a conversion, the training in one process, and as the recipe has it.

    Args:
        is_first: of its recipe: the others get an output folder of their own.
    """
    own = {name: value for name, value in training.method["options"].items() if name != BATCH}
    stated = yaml.safe_load((ROOT / training.recipe).read_text(encoding="utf-8"))
    if training.options["corpus"] != stated["corpus"]:
        own["corpus"] = training.options["corpus"]
    if training.longformer is not None:
        own["model_name_or_path"] = f"outputs/{_slug(training.longformer)}"
        words = ["python", "convert_to_longformer.py", training.start, own["model_name_or_path"]]
        yield shlex.join([*words, *words_of(training.conversion)])
    own |= {} if is_first else {"output_dir": f"outputs/{_slug(training.name)}"}
    script = ["run_docsplit_pretraining.py", training.recipe]
    yield shlex.join(["accelerate", "launch", "--num_processes", "1", *script, *words_of(own)])
    if training.processes > 1:
        launch = ["--multi_gpu", "--num_processes", str(training.processes)]
        batch = {BATCH: training.options[BATCH]}
        yield shlex.join(["accelerate", "launch", *launch, *script, *words_of(own | batch)])


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower())


def _all_commands(trainings: Sequence[Training]) -> str:
    """Return the commands of all trainings, those of each below its name and its batch."""
    parts, recipes = [], set[str]()
    for one in trainings:
        lines = "\n".join(f"    {line}" for line in _commands(one, one.recipe not in recipes))
        recipes.add(one.recipe)
        stated = yaml.safe_load((ROOT / one.recipe).read_text(encoding="utf-8"))[BATCH]
        batch = one.processes * one.options[BATCH]
        batches = f"{stated:,} documents a step" if one.processes == 1 else (
            f"in one process {stated:,} documents a step; in {one.processes} processes, as `reproduce.py` starts it, "
            f"{one.processes} x {one.options[BATCH]:,} = {batch:,}"
        )  # fmt: skip
        parts.append(f"{code(one.name)}, {batches}:\n\n{lines}")
    return "\n\n".join(parts)


def _settings(trainings: Sequence[Training]) -> str:
    """Tell the settings of the first recipe, with their sources, and what differs in the other recipes."""
    parts, known = [], dict[str, Any]()
    for recipe in dict.fromkeys(one.recipe for one in trainings):
        path = ROOT / recipe
        shown = [one for one in settings_of(path) if one.name not in OF_THE_MACHINE]
        differing = [one for one in shown if known.get(one.name) != one.value]
        intro = f"{'Where it differs, ' if known else ''}[{recipe}](../../{recipe})"
        intro += (
            f'; "paper" stands for {where_from(path).removeprefix("its ")}, "open" for what the paper leaves open:'
        )
        rows = [
            [code(one.name), code(one.text), one.source or ("below" if one.note else "our choice")]
            for one in differing
        ]
        notes = [Markdown(f"{code(one.name)}: {inline(one.note)}") for one in differing if one.note]
        parts += [intro, markdown_table(["setting", "value", "source"], rows), bullets(notes)]
        known |= {one.name: one.value for one in shown}
    return "\n\n".join(filter(None, parts))


def _figures(plan: Plan, card: PaperCard) -> str:
    """Return the paper's tables with a row of the methods, each with the paper's claims that it does not carry."""
    methods, parts = [plan.recipe["methods"][name] for name in card.methods], []
    own = {row for method in methods for row in papers_rows(method)}
    families = {method["family"] for method in methods}
    places = [(one.paper, one.table, one.part) for one in TABLES if one.family in families]
    for name, number, part in dict.fromkeys(places):
        paper = read_paper(name)
        table = paper.table(number, part)
        if own.isdisjoint(table.rows):
            continue
        of_part = f", {part}" if part else ""
        title = f"{bold(f'{paper.short}, Table {number}{of_part}')}: {inline(table.title)}"
        title += f"; {inline(table.note)}" if table.note else ""
        contradicted = [
            f"The paper says: {claim['says']}. This table does not: {claim['but']}."
            for claim in paper.claims
            if (claim["table"], claim.get("part", "")) == (number, part)
            and not claim["holds"] and not own.isdisjoint(claim["ahead"])
        ]  # fmt: skip
        source = f"<!-- from ../../docs/papers/{name}.json -->"
        parts += [f"{title}.", f"{source}\n\n{_figure_table(table, own)}", bullets(contradicted)]
    return "\n\n".join(filter(None, parts))


def _figure_table(table: PaperTable, own: set[str]) -> str:
    """Return a paper's table, with the rows of the card's methods in bold."""
    titles = [
        " ".join(MEASURES.get(word, word) for word in f"{data or ''} {metric}".split())
        for data, metric in table.columns
    ]
    rows = [
        [bold(name) if name in own else name, *("" if value is None else str(value) for value in values)]
        for name, values in table.rows.items()
    ]
    return markdown_table([COLUMN, *titles], rows)


def card_text(plan: Plan, card: PaperCard) -> str:
    """Return the card of encoders that nobody has trained.

    Args:
        plan: of the recipe, with all data.
    """
    trainings, recipe = [training_of(plan, name) for name in card.methods], plan.recipe
    corpora = [corpus for one in trainings if not (corpus := one.options["corpus"]).startswith(DATA)]
    citations = [PAPERS[one.options[name]] for one in trainings for name in ("view", "objective")
                 if one.options.get(name) in PAPERS]  # fmt: skip
    only = ["--only", *(pattern for name in card.methods for pattern in patterns(name))]
    words = ["python", "reproduce.py", RECIPE, "--output_dir", FOLDER]
    first_pattern = patterns(card.methods[0])[0]
    starts = list(dict.fromkeys(one.start for one in trainings))
    card_data = ModelCardData(  # of a trained encoder's card, without licence, numbers and widget
        base_model=starts[0] if len(starts) == 1 else starts,
        datasets=list(dict.fromkeys(corpus.partition(":")[0] for corpus in corpora)),
        library_name="sentence-transformers",
        model_name=card.name,
        pipeline_tag="sentence-similarity",
        tags=["docsplit", "feature-extraction", "sentence-similarity"],
    )
    text = ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        name=card.name,
        what=card.what,
        hardware=recipe["hardware"],
        hours=f"{sum(one.hours for one in trainings):.0f}",
        cells=sum(one.seeds * one.cells for one in trainings),
        seeds=len(recipe["seeds"]),
        speed=f"{recipe['speed']['flops_per_second']:.2g}",
        source=recipe["speed"]["source"],
        trainings=_trainings(trainings),
        sets=_sets(plan, card.methods),
        commands=_all_commands(trainings),
        reproduce=f"    {shlex.join([*words, *only])}",
        papers=bullets(dict.fromkeys(citations)),
        settings=_settings(trainings),
        figures=_figures(plan, card),
        open=bullets(Markdown(f"{bold(name)}: {decided}") for name, decided in decisions(card.open_questions)),
        folder=FOLDER,
        list=shlex.join([*words, "--only", first_pattern, "--list"]),
        recipe=RECIPE,
    )
    return f"{str(text).rstrip()}\n"


def write_cards(folder: Path) -> list[Path]:
    """Write the card of each of `CARDS` into its folder; return the files."""
    plan, paths = make_plan(read_recipe(ROOT / RECIPE), with_all_data=True), []
    for card in CARDS:
        path = folder / card.name / "README.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, card_text(plan, card))
        paths.append(path)
    return paths


if __name__ == "__main__":
    for written in write_cards(ROOT / "model_cards"):
        print(f"Written: {written}")
