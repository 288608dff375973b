"""A recipe of a reproduction as a study: trainings, what is measured of each, and what cannot be measured here.

    extends: small.yaml                     # optional: what is not said here is said there
    title: ...
    hardware: two CPU cores                 # for which the cells were chosen
    hours: 6                                # that they should take there
    seeds: [0, 1, 2]                        # of pretraining
    jobs: 2                                 # cells at a time
    hub: false                              # true: what the recipe names on the Hub is fetched
    corpus: python_docs                     # what all trainings read; --corpus
    documents: 10000                        # in it, and tokens of one: for the projection
    document_tokens: 200
    speed: {hardware, source, flops_per_second, seconds_a_step, seconds_a_process, shape: [2, 128]}
        # of one device; least seconds of an optimiser step; of starting a process; layers and width of an encoder
    start: {max_steps: 900, ...}            # options of the masked LM that is trained first; --model_name_or_path
    common: {...}                           # options of all trainings
    launch: [--multi_gpu, --num_processes, 8]   # words of Accelerate's launcher; optional
    methods:
      DocSplit:                             # a training for each seed, from `start` unless it says `from`
        family: docsplit
        from: start                         # or another method, or a name on the Hub
        recipe: recipes/docsplit_bert.yaml  # optional
        options: {view: docsplit}
        corpus: data/mimic/train.jsonl      # in place of the recipe's, as are documents, document_tokens and launch
        launch: [--num_processes, 1]        # slower: 2 says that a token costs twice as much; shape and length (512
                                            # tokens are read) are of this encoder alone
        convert: {max_positions: 1024}      # made a Longformer first; without `options` and `recipe` that is all
        paper: DocSplit_bert                # its row, or rows, in the papers' tables
      other pooling: {family: docsplit, from: DocSplit, read: {override_pooling: max}}   # trains nothing: another
                                            # reading of DocSplit's encoders
      BERT: {family: docsplit, name: bert-base-uncased}      # measured as it is
      TF-IDF: {family: docsplit, words: tfidf}               # needs no encoder
    evaluations:
      classification:
        family: docsplit
        kind: classification                # a row of `benchmarks.studies.reproduction.measure.EVALUATIONS`
        methods: [DocSplit, BERT, TF-IDF]   # * in names stands for anything
        options: {heads: [mlp, linear]}
        train: {recipe: recipes/ranking_wikir.yaml, options: {...}}   # a training of each encoder before it; with
                                            # `folds: 5` one for each fold, which are measured as one
        cost: {passes: 2, seconds: 30}      # over the documents, of SetFit (of finetune: its epochs); seconds beside
        sets:
          python_docs: {}
          20News: {recipe: recipes/probe_20news.yaml}        # a set may have options and cost of its own
    hypotheses: {I1: {...}}                 # optional: in place of hypotheses.yaml
    datasets: {data/mine: {...}}            # optional: beside those of datasets.yaml

A set whose files are not in the data folder makes no cells: it is `missing`, and tables say what they need. Which
files a folder must have stands in datasets.yaml.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from benchmarks.studies.reproduction.measure import RANDOM
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.data.views import MOST_PASSAGES, PASSAGE_VIEWS
from docsplit.evaluation.heads.presets import PRESETS
from docsplit.evaluation.task_arguments import NEED_A_TAGGER, READ_ALL, AnalysisArguments, ProbeArguments
from docsplit.runtime.files import ROOT

Options = dict[str, Any]
FAMILIES = ("docsplit", "bregman", "graph")
WORDS = {
    *("title", "hardware", "hours", "seeds", "jobs", "hub", "corpus", "documents", "document_tokens", "speed"),
    *("start", "common", "launch", "methods", "evaluations", "differences", "hypotheses", "datasets"),
}
METHOD_WORDS = {
    *("family", "from", "recipe", "options", "convert", "paper", "name", "words", "random", "seeds", "slower"),
    *("corpus", "documents", "document_tokens", "again", "read", "launch", "shape", "length"),
}
EVALUATION_WORDS = {"family", "kind", "methods", "options", "train", "cost", "sets"}
SET_WORDS = {"recipe", "options", "cost", "corpus", "train", "methods"}
SHARED_CODE = ["docsplit/data", "docsplit/embedding", "docsplit/modeling", "docsplit/runtime", "modeling_docsplit.py",
               "modeling_graph_document.py"]  # fmt: skip
TRAINING_CODE = ["docsplit/training", "run_docsplit_pretraining.py", "convert_to_longformer.py"]
MEASURING_CODE = ["docsplit/evaluation", "benchmarks/studies/reproduction/measure.py",
                  "benchmarks/studies/reproduction/rotation.py"]  # fmt: skip
MADE_BY = ("options", "recipe", "convert", "random")  # a method without these trains nothing
START = "start"
MEASURE = "benchmarks.studies.reproduction.measure"
NOT_HERE = "not-here"  # in place of the data folder, where all commands are checked
GIVEN = ("data_dir", "given_start", "given_corpus")  # variables
DATA = "data/"  # the folder of recipes' files; --data_dir replaces it
HELD = ("train_file", "validation_file", "test_file", "lra_dir", "papers_file", "collection", "corpus")  # data options
HUB_OPTIONS = ("dataset_name",)
DATA_OPTIONS = (*HELD, *HUB_OPTIONS)
FROZEN_HEADS = frozenset({"mlp", "linear", "knn"})
TOKENS_A_WORD = 1.35
DATA_SETS = ROOT / "recipes" / "reproduction" / "datasets.yaml"


@dataclass(frozen=True)
class Cost:
    """What a cell is projected from."""

    documents: float = 0.0  # that are read, each as often as it is
    tokens: float = 0.0  # of them, likewise
    steps: float = 0.0  # of optimisers
    flops_a_step: float = 0.0  # of each device
    read_flops: float = 0.0  # of embedding
    seconds: float = 0.0  # beside: of heads, say
    processes: int = 1  # that start one after another

    def hours(self, speed: Mapping[str, Any]) -> float:
        """Project the hours: a step has its arithmetic, or the least time of a step where that is more."""
        a_step = max(self.flops_a_step / speed["flops_per_second"], speed["seconds_a_step"])
        working = self.steps * a_step + self.read_flops / speed["flops_per_second"]
        return (working + self.seconds + self.processes * speed["seconds_a_process"]) / 3600


def flops_a_token(shape: Sequence[int], length: float) -> float:
    """Return the operations of one token forward in a text of so many; a training has three times as many."""
    layers, width = shape
    return 24 * layers * width**2 + 4 * layers * width * length


def options_of(step: Mapping[str, Any]) -> Options:
    """Return the options of a step, those of its recipe included."""
    return (_stated_in(ROOT / step["recipe"]) if step.get("recipe") else {}) | step["options"]


@cache
def _stated_in(recipe: Path) -> Options:
    return yaml.safe_load(recipe.read_text(encoding="utf-8"))


def training_cost(recipe: Mapping[str, Any], method: Mapping[str, Any]) -> Cost:
    """Project a training: each pass counted, times what a token of this encoder costs more.

    The whole document is read twice in the view simcse, and once, in two parts, in others; of passages, the
    first 50. Masked LM is a pass more, and so is a third of one for the gradient cache. A method with a corpus of its
    own may say how many documents that has, and the tokens of one.
    """
    options = options_of({"recipe": method.get("recipe"),
                          "options": recipe.get("common", {}) | (method.get("options") or {})})  # fmt: skip
    processes = processes_of(launch_of(recipe, method))
    batch = options.get("per_device_train_batch_size", 8)
    documents, tokens = (method.get(name, recipe[name]) for name in ("documents", "document_tokens"))
    epochs = options.get("num_train_epochs", 1) * documents / (batch * processes)
    steps = options["max_steps"] if options.get("max_steps", -1) > 0 else epochs
    view, longest = options.get("view", "docsplit"), options.get("max_seq_length", 512)
    most = longest * (MOST_PASSAGES if view in (*PASSAGE_VIEWS, "query_document") else 2)
    whole = 2 * min(tokens, longest) if view == "simcse" else min(tokens, most)
    passes = float(options.get("contrastive_weight", 1) > 0) + float(options.get("mlm_weight", 0.1) > 0)
    passes += 1 / 3 if options.get("cache_gradients") else 0
    shape = method.get("shape", recipe["speed"]["shape"])
    flops = 3 * flops_a_token(shape, min(longest, whole / 2)) * method.get("slower", 1)
    read = steps * batch * processes
    return Cost(read, read * whole, steps, batch * whole * passes * flops)


def launch_of(recipe: Mapping[str, Any], method: Mapping[str, Any]) -> Sequence[Any]:
    """Return the words of Accelerate's launcher for a training: the method's own, else those of all."""
    return method.get("launch", recipe.get("launch")) or []


def processes_of(launch: Sequence[Any]) -> int:
    """Return how many processes these words of the launcher start."""
    words = list(map(str, launch))
    return int(words[words.index("--num_processes") + 1]) if "--num_processes" in words else 1


@dataclass(frozen=True)
class Missing:
    """What cannot be measured here."""

    evaluation: str
    data: str
    needs: str  # of one set, the same in all tables
    file: str = ""  # or name on the Hub, of those that are missing the first


@dataclass
class Plan:
    """A recipe as a study, and what the report has to know of it."""

    recipe: Mapping[str, Any]
    study: dict[str, Any]  # as `benchmarks.engine.study.Study` takes it
    family_of: dict[str, str] = field(default_factory=dict)  # of each group
    costs: dict[str, Cost] = field(default_factory=dict)  # of a cell of each group
    with_all_data: bool = False  # cells of sets that are not here too
    missing: list[Missing] = field(default_factory=list)
    evaluated: dict[tuple[str, str, str], str] = field(default_factory=dict)  # evaluation, data, method: the group


def read_recipe(path: Path) -> dict[str, Any]:
    """Read and check a recipe.

    Raises:
        ValueError: if it has a word that means nothing, or names a method or a family that there is not.
    """
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if isinstance(recipe, dict) and "extends" in recipe:
        recipe = _merged(read_recipe(path.parent / recipe.pop("extends")), recipe)
        kept = [(recipe, "methods"), (recipe, "evaluations")]  # null takes one out
        kept += [(one, "sets") for one in recipe["evaluations"].values() if one is not None]
        for whole, part in kept:
            whole[part] = {name: one for name, one in whole[part].items() if one is not None}
    if not isinstance(recipe, dict) or not {"methods", "evaluations", "speed", "seeds"} <= recipe.keys():
        raise ValueError(f"{path} is no recipe of a reproduction: it needs seeds, speed, methods and evaluations.")
    methods, evaluations = recipe["methods"], recipe["evaluations"]
    parts = [(recipe, WORDS), *((one, METHOD_WORDS) for one in methods.values())]
    parts += [(one, EVALUATION_WORDS) for one in evaluations.values()]
    parts += [(one, SET_WORDS) for evaluation in evaluations.values() for one in evaluation["sets"].values()]
    if unknown := sorted({str(word) for words, known in parts for word in words.keys() - known}):
        raise ValueError(f"{path} has {', '.join(unknown)}, which a recipe of a reproduction does not know.")
    if wrong := [name for name, one in [*methods.items(), *evaluations.items()] if one.get("family") not in FAMILIES]:
        raise ValueError(f"{path}: {', '.join(wrong)} must name a family of {', '.join(FAMILIES)}.")
    for name, evaluation in recipe["evaluations"].items():
        for pattern in evaluation["methods"]:
            if not any(_fits(method, pattern) for method in recipe["methods"]):
                raise ValueError(f"{path}: the evaluation {name} has the method {pattern!r}, which there is not.")
    return recipe


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> Options:
    """Return mappings within mappings as one; what is `own` wins."""
    merged = dict(base)
    for name, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merged(merged[name], value) if both else value
    return merged


def make_plan(
    recipe: Mapping[str, Any], data_dir: Path = Path("data"), has_start: bool = False, with_all_data: bool = False
) -> Plan:
    """Make the cells of a recipe. The folder of the data, an encoder to start from and a corpus that are given are
    `GIVEN`, variables of the study, so that no path is part of a cell's key.

    Args:
        data_dir: the folder in place of `data`, to see what is there.
        has_start: an encoder to start from is given: no masked LM is trained first.
        with_all_data: make the cells of all sets, as if their files were here.
    """
    start = "{given_start}" if has_start else None
    plan = Plan(recipe, {"code": SHARED_CODE, "groups": {}}, with_all_data=with_all_data)
    shared = {"family": FAMILIES[0], "from": None, "options": recipe.get(START), "seeds": None}
    methods = ({START: shared} if START in recipe and start is None else {}) | recipe["methods"]
    for name, method in methods.items():
        corpus = str(method.get("corpus", recipe.get("corpus")))
        file = corpus.removeprefix(DATA)
        if name != START and (not _is_made(method) or maker_of(recipe, name) != name):
            continue
        if file == corpus or with_all_data or is_here(recipe, data_dir, corpus):
            placed = dict(method) if file == corpus else method | {"corpus": f"{{data_dir}}/{file}"}
            _add_training(plan, name, placed, start if name != START else None)
    for name, evaluation in recipe["evaluations"].items():
        for data, own in evaluation["sets"].items():
            _add_evaluation(plan, name, data, own or {}, None if with_all_data else data_dir)
    return plan


def training_group(method: str) -> str:
    """Return the name of the group that makes the encoders of a method."""
    return f"train {method}"


def evaluation_group(evaluation: str, data: str, method: str) -> str:
    """Return the name of the group that measures a method."""
    return f"{evaluation} {data}: {method}"


def methods_of(recipe: Mapping[str, Any], evaluation: str, data: str | None = None) -> list[str]:
    """Return the methods that an evaluation measures, in the recipe's order; a set may have fewer."""
    whole = recipe["evaluations"][evaluation]
    patterns = (whole["sets"].get(data) or {}).get("methods", whole["methods"])
    return [name for name in recipe["methods"] if any(_fits(name, pattern) for pattern in patterns)]


def _fits(name: str, pattern: str) -> bool:
    """Whether a name is the pattern, or fits it."""
    return name == pattern or fnmatchcase(name, pattern)


def method_named(recipe: Mapping[str, Any], name: str, evaluation: str, data: str) -> str:
    """Return the method of this name in an evaluation of a set, else the one for which a row of the papers stands."""
    methods = methods_of(recipe, evaluation, data) if evaluation in recipe["evaluations"] else []
    papers = [method for method in methods if name in papers_rows(recipe["methods"][method])]
    return name if name in methods or not papers else papers[0]


def papers_rows(method: Mapping[str, Any]) -> list[str]:
    """Return the rows of the papers' tables that a method stands for."""
    stated = method.get("paper") or []
    return [stated] if isinstance(stated, str) else list(stated)


def _is_made(method: Mapping[str, Any]) -> bool:
    return "name" not in method and "words" not in method


def maker_of(recipe: Mapping[str, Any], name: str) -> str:
    """Return the method whose training makes the encoders that a method is measured by: its own, or its `from`."""
    method = recipe["methods"][name]
    return name if not _is_made(method) or not set(MADE_BY).isdisjoint(method) else method["from"]


def is_here(recipe: Mapping[str, Any], data_dir: Path, place: str) -> bool:
    """Whether a file of the data is here, or all files that a folder must have."""
    path = data_dir / place.removeprefix(DATA)
    patterns = facts_of(recipe, place).get("holds", ["**/*"]) if path.is_dir() else []
    return path.is_file() or (
        path.is_dir() and all(any(file.is_file() for file in path.glob(pattern)) for pattern in patterns)
    )


def _add_training(plan: Plan, name: str, method: Options, start: str | None = None) -> None:
    """Add the group of a method's encoders: a conversion, a training, or random weights."""
    origin, seeds = method.get("from", START), _seeds_of(plan, method)
    source, needs = _origin(plan, origin, start)
    steps = _training_steps(plan, method, source, seeds)
    trains = "options" in method or "recipe" in method
    corpus = method.get("corpus", plan.recipe.get("corpus"))
    files = [method["recipe"]] if "recipe" in method else []
    files += [corpus] if trains and str(corpus).startswith("{") and not plan.with_all_data else []
    files += [start] if start is not None and origin == START else []
    seconds = [
        {"metric": metric, "file": "{folder}/encoder/all_results.json", "value": metric}
        for metric in ("train_tokens", "train_runtime")
    ]
    group_name, seed = training_group(name), "{seed}" if seeds else None
    plan.study["groups"][group_name] = {
        "grid": {"seed": seeds} if seeds else {},
        "needs": {} if needs is None else {"origin": needs},
        "code": TRAINING_CODE,
        "data": files,
        "steps": steps,
        "fields": {"data": "pretraining", "task": "pretraining", "method": name, "seed": seed},
        "measures": seconds if trains else [],
    }
    plan.family_of[group_name] = method["family"]
    plan.costs[group_name] = replace(training_cost(plan.recipe, method) if trains else Cost(), processes=len(steps))


def _origin(plan: Plan, origin: str | None, start: str | None) -> tuple[str | None, str | None]:
    """Return the encoder that a training starts from, and the group that makes it, if one does."""
    methods = plan.recipe["methods"]
    if origin is None or (origin == START and start is not None):
        return (start if origin == START else None), None
    if origin != START and origin not in methods:
        return origin, None  # a name on the Hub
    if origin in methods and not _is_made(methods[origin]):
        return methods[origin]["name"], None
    return "{origin}/encoder", training_group(origin)


def _training_steps(plan: Plan, method: Options, source: str | None, seeds: Sequence[int]) -> list[Options]:
    """Return the steps that make an encoder: random weights, a conversion, a training."""
    recipe, steps, trains = plan.recipe, list[Options](), "options" in method or "recipe" in method
    encoder, seed = "{folder}/encoder", "{seed}" if seeds else 0
    if method.get("random"):
        options = {"evaluation": RANDOM, "like": source, "seed": seed, "output_dir": encoder}
        steps.append({"module": MEASURE, "options": options})
    if "convert" in method:
        converted = "{folder}/longformer" if trains else encoder
        words = [source, converted]
        steps.append({"script": "convert_to_longformer.py", "words": words, "options": method["convert"]})
        source = converted
    if trains:
        options = dict(recipe.get("common", {})) | {"corpus": method.get("corpus", recipe.get("corpus"))}
        options |= dict(method.get("options") or {})
        options |= {} if source is None else {"model_name_or_path": source}
        step = {"script": "run_docsplit_pretraining.py", "options": options | {"output_dir": encoder, "seed": seed}}
        step |= {"recipe": method["recipe"]} if "recipe" in method else {}
        step |= {"launch": launch} if (launch := launch_of(recipe, method)) else {}
        steps.append(step | {"again": method.get("again", {"overwrite_output_dir": True})})
    return steps


def _seeds_of(plan: Plan, method: Mapping[str, Any]) -> list[int]:
    """Return the seeds of a method's trainings; none where there is one encoder without a seed."""
    if not _is_made(method) or ("seeds" in method and method["seeds"] is None):
        return []
    return list(method.get("seeds") or plan.recipe["seeds"])


def _add_evaluation(plan: Plan, name: str, data: str, own: Options, data_dir: Path | None) -> None:
    """Add a group for each method that is measured on a set, or note what is missing; None: all counts as here."""
    evaluation = plan.recipe["evaluations"][name]
    stated = options_of({"recipe": own.get("recipe"), "options": own.get("options", {})})
    training = own.get("train") or evaluation.get("train")
    tuned = options_of({"recipe": training.get("recipe"), "options": training.get("options", {})}) if training else {}
    placed, needed = {}, []
    for option, value in (stated | {option: tuned[option] for option in ("corpus",) if option in tuned}).items():
        if isinstance(value, str) and value.startswith(DATA) and option in (*HELD, "folds", "citations_file"):
            file = value.removeprefix(DATA)
            placed[option] = f"{{data_dir}}/{file}"
            needed += [] if data_dir is None or is_here(plan.recipe, data_dir, value) else [value]
        elif data_dir is not None and option in HUB_OPTIONS and not plan.recipe.get("hub"):
            needed.append(value)
    if needed:
        plan.missing.append(Missing(name, data, f"needs {data}: see docs/datasets.md", needed[0]))
        return
    options = dict(evaluation.get("options", {})) | dict(own.get("options", {}))
    pipeline = options.get("spacy_pipeline", AnalysisArguments.spacy_pipeline)
    if not plan.with_all_data and _needs_a_tagger(options) and not (find_spec(pipeline) or Path(pipeline).exists()):
        needs = f"needs the spaCy pipeline {pipeline}: see docs/analyses.md"
        plan.missing.append(Missing(name, data, needs, pipeline))
        return
    for method in methods_of(plan.recipe, name, data):
        maker = training_group(maker_of(plan.recipe, method))
        if _is_made(plan.recipe["methods"][method]) and maker not in plan.study["groups"]:
            plan.missing.append(Missing(name, data, f"needs the corpus of {method}"))
        else:
            _add_measuring(plan, (name, data, method), own, placed, training)


def _needs_a_tagger(options: Mapping[str, Any]) -> bool:
    analyses = options.get("analyses", [])
    return not set(NEED_A_TAGGER).isdisjoint(analyses if isinstance(analyses, list) else [analyses])


def _add_measuring(
    plan: Plan, place: tuple[str, str, str], own: Options, placed: Mapping[str, str], training: Any
) -> None:
    """Add the group that measures one method on one set, after a training for this set if the recipe has one."""
    name, data, method_name = place
    evaluation, method = plan.recipe["evaluations"][name], plan.recipe["methods"][method_name]
    group_name, seeds = evaluation_group(*place), _seeds_of(plan, method)
    encoder = method.get("name") or method.get("words") or "{encoder}/encoder"
    steps, tuning = [], Cost()
    if training and "words" not in method:
        folds = [{"fold": fold} for fold in range(training["folds"])] if "folds" in training else [{}]
        for number, fold in enumerate(folds):
            tuned = dict(training.get("options", {})) | fold
            tuned |= {name: placed[name] for name in ("corpus", "folds") if name in placed}
            tuned |= {"model_name_or_path": encoder, "output_dir": f"{{folder}}/tuned-{number}"}
            step = {"script": "run_docsplit_pretraining.py", "options": tuned, "again": {"overwrite_output_dir": True}}
            step |= {"recipe": training["recipe"]} if "recipe" in training else {}
            steps.append(step | ({"launch": plan.recipe["launch"]} if "launch" in plan.recipe else {}))
        stated, facts = options_of(steps[0]), facts_of(plan.recipe, options_of(steps[0])["corpus"])
        tokens = facts["words"] * TOKENS_A_WORD * (1 + stated.get("negatives_per_query", 0))
        queries = {"documents": facts["queries"], "document_tokens": tokens, "launch": plan.recipe.get("launch")}
        one = training_cost(plan.recipe, {**method, **queries, "options": stated, "recipe": None})
        times = {name: getattr(one, name) * len(folds) for name in ("documents", "tokens", "steps")}
        tuning = replace(one, **times)
        tuned_encoders = ",".join(step["options"]["output_dir"] for step in steps)
        encoder = f"encoder={tuned_encoders}" if len(folds) > 1 else tuned_encoders
    options = {"evaluation": evaluation["kind"]} | dict(evaluation.get("options", {})) | dict(own.get("options", {}))
    options |= {name: value for name, value in placed.items() if name != "corpus"} | dict(method.get("read") or {})
    options |= {"model_name_or_path": encoder, "output_dir": "{folder}/measured"}
    options |= {"encoders_by_fold": True} if len(steps) > 1 else {}
    if evaluation["kind"] == "links" and "words" in method:
        options["heads"] = [method["words"]]
    if evaluation["kind"] == "ranking" and "words" in method:
        options["methods"] = [method["words"]]
    recipe = {"recipe": own["recipe"]} if "recipe" in own else {}
    if recipe and _takes_data_alone(evaluation["kind"], options):
        options = _data_options(options_of(recipe | {"options": {}})) | options
        recipe = {}
    steps.append({"module": MEASURE, "options": options} | recipe)
    files = [one["recipe"] for one in (own, training or {}) if "recipe" in one]
    files += [] if plan.with_all_data else list(placed.values())
    plan.study["groups"][group_name] = {
        "grid": {"seed": seeds} if seeds else {},
        "needs": {"encoder": training_group(maker_of(plan.recipe, method_name))} if _is_made(method) else {},
        "code": MEASURING_CODE, "data": files, "steps": steps,
        "fields": {"data": data, "task": name, "method": method_name, "seed": "{seed}" if seeds else None},
        "measures": [{"rows": "{folder}/measured/rows.json"}],
    }  # fmt: skip
    plan.family_of[group_name] = evaluation["family"]
    plan.evaluated[place] = group_name
    cost = dict(evaluation.get("cost", {})) | dict(own.get("cost", {}))
    whole = replace(tuning, seconds=cost.get("seconds", 0), processes=len(steps))
    plan.costs[group_name] = reading_cost(plan.recipe, method, steps[-1], whole, cost.get("passes", 0))


def reading_cost(
    recipe: Mapping[str, Any], method: Mapping[str, Any], step: Mapping[str, Any], cost: Cost, passes: float
) -> Cost:
    """Add to a cost what reading the documents of a set takes, and fine-tuning in so many passes over them.

    Args:
        passes: of another training than `finetune`, which has its epochs.
    """
    options = options_of(step)
    facts = facts_of(recipe, next((options[name] for name in DATA_OPTIONS if options.get(name)), "python_docs"))
    limits = [options.get(name, facts["documents"]) for name in ("max_train_samples", "max_test_samples")]
    documents, tokens = min(facts["documents"], sum(limits)), facts["words"] * TOKENS_A_WORD
    if "words" in method:
        return replace(cost, documents=documents, tokens=documents * tokens)
    analyses = options.get("analyses", [])
    if analyses and READ_ALL.isdisjoint([analyses] if isinstance(analyses, str) else analyses):
        documents = min(documents, options.get("sample_documents", AnalysisArguments.sample_documents))
    length = min(method.get("length", 512), options.get("max_seq_length") or 10**6, tokens)
    preset = PRESETS[options.get("probe_preset", ProbeArguments.probe_preset)].finetuning
    if "finetune" in options.get("heads", ()):
        passes = options.get("finetune_epochs", preset.num_epochs)
    read = documents * (passes or 1)
    shape = method.get("shape", recipe["speed"]["shape"])
    flops = length * flops_a_token(shape, min(length, 512)) * method.get("slower", 1)  # longer ones attend in windows
    cost = replace(cost, documents=cost.documents + read, tokens=cost.tokens + read * length)
    if not passes:
        return replace(cost, read_flops=documents * flops)
    batch = options.get("finetune_batch_size", preset.batch_size)
    return replace(cost, steps=read / batch, flops_a_step=3 * batch * flops)


@cache
def data_sets() -> dict[str, Any]:
    """Return the table of the data sets."""
    return yaml.safe_load(DATA_SETS.read_text(encoding="utf-8"))


def facts_of(recipe: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return what the recipe, or the table, says of a folder of the data, of a file in it, or of a name of the Hub.

    Raises:
        ValueError: if neither has it.
    """
    name = place.replace("{data_dir}/", DATA).replace(f"{NOT_HERE}/", DATA)
    name = "/".join(name.split("/")[:2])
    known = data_sets() | recipe.get("datasets", {})
    if name not in known:
        raise ValueError(f"{name} is neither in {DATA_SETS.name} nor in the recipe's `datasets`: add what it holds.")
    return known[name]


def _takes_data_alone(kind: str, options: Mapping[str, Any]) -> bool:
    """Whether a set's recipe, which is one of probes, has options of heads that this evaluation has not."""
    heads = options.get("heads", FROZEN_HEADS)
    return kind == "analysis" or FROZEN_HEADS.isdisjoint(heads if isinstance(heads, list) else [heads])


def _data_options(options: Mapping[str, Any]) -> Options:
    names = {known.name for known in fields(LabelledArguments)}
    return {name: value for name, value in options.items() if name in names}
