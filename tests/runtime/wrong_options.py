"""Wrong combinations of options of every script, and what a user sees of them, all in one process.

    python -m tests.runtime.wrong_options 2500 --seed 7   # a soak: other combinations; prints what is not refused

`refusal` runs a script as its command does, up to where its work would begin.
"""

import argparse
import contextlib
import importlib
import io
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from docsplit.runtime.options import Bound, CommandParser
from tests.processes import ROOT

WORK = {  # where the work of a script begins
    "run_docsplit_pretraining": ["docsplit.training.run.load_data"],
    "run_probe_classification": ["docsplit.evaluation.compare.compare"],
    "run_aan_retrieval": ["docsplit.evaluation.compare.compare"],
    "run_document_retrieval": ["docsplit.evaluation.compare.compare"],
    "run_embedding_analysis": ["docsplit.evaluation.compare.compare"],
    "adapt": ["docsplit.training.adapting.adapt"],
    "search": ["docsplit.embedding.encoder.Encoder", "docsplit.index.index.Index"],
    "explore": ["docsplit.embedding.encoder.Encoder"],
    "convert_to_longformer": ["docsplit.modeling.pretrained.read_start"],
    "export_onnx": ["docsplit.embedding.loading.load_encoder"],
}
CANARY = "CanaryCanary"  # of a token that is typed, and must not be printed
DOCUMENTS = str(ROOT / "tests" / "data" / "documents.jsonl")
RIGHT = {  # words of a script that are enough; FOLDER and FILE are there
    "run_docsplit_pretraining": f"--corpus {DOCUMENTS} --output_dir FOLDER/out --use_cpu --config_overrides "
    "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32",
    "run_probe_classification": "--model_name_or_path tfidf --shots 5 10",
    "run_aan_retrieval": "--model_name_or_path tfidf --num_seeds 2",
    "run_document_retrieval": "--model_name_or_path bm25 --folds 4",
    "run_embedding_analysis": "--model_name_or_path tfidf --map_method pca",
    "adapt": f"FOLDER {DOCUMENTS} FOLDER/out --static",
    "search build": f"build {DOCUMENTS} --model FOLDER --index_dir FOLDER/index",
    "search query": "query FOLDER harbours",
    "search duplicates": "duplicates FOLDER",
    "search clusters": "clusters FOLDER",
    "explore": "FOLDER --map pca",
    "convert_to_longformer": "FOLDER FOLDER/out",
    "export_onnx": "FOLDER FOLDER/out",
}
WRONG = {  # and what the line must say
    "run_docsplit_pretraining": {
        "--num_train_epochs -1 --max_steps -1": "--num_train_epochs",
        "--fp16": "needs a GPU",
        "--model_type brt": "Did you mean bert?",
        "--config_overrides hidden_size=33": "--config_overrides",
        "--config_overrides num_hidden_layers=-1": "--config_overrides",
        "--config_overrides hidden_dropout_prob=2": "--config_overrides",
        "--model_type graph_document --config_overrides graph_kind=nonsense": "graph_kind",
        "--optim nonsense": "--optim",
        "--lr_scheduler_type nonsense": "--lr_scheduler_type",
        "--lr_scheduler_kwargs {bad": "transformers refuses these options",
        "--lr_scheduler_kwargs [1]": "give JSON",
        '--lr_scheduler_type polynomial --lr_scheduler_kwargs {"lr_end":NaN}': "lr_end=nan makes a learning rate",
        '--lr_scheduler_type polynomial --lr_scheduler_kwargs {"power":-1}': "power=-1 makes a learning rate",
        '--accelerator_config {"nonsense":1}': "nonsense",
        "--ddp_backend nonsense": "--ddp_backend",
        "--dataloader_multiprocessing_context spawn": "--dataloader_multiprocessing_context",
        "--metric_for_best_model probe_5shot_accuracy --eval_strategy steps": "needs --probe_corpus",
        "--metric_for_best_model accuracy --eval_strategy steps": "--metric_for_best_model has no accuracy",
        "--load_best_model_at_end": "there are none",
        "--load_best_model_at_end --eval_strategy steps --eval_steps 300": "load_best_model_at_end",
        "--early_stopping_patience 3": "needs --load_best_model_at_end",
        "--eval_strategy steps --per_device_eval_batch_size 1": "without negatives",
        "--per_device_train_batch_size 1": "no negatives",
        "--dataloader_persistent_workers": "--dataloader_persistent_workers",
        "--fsdp full_shard": "--fsdp",
        "--hub_token hf_CanaryCanaryCanary": "HF_TOKEN",
        "--push_to_hub hf_CanaryCanaryCanary": "hf_...",
        "--output_dir FILE": "FILE cannot be written",
        "--resume_from_checkpoint FOLDER": "Cannot resume from",
        "--streaming": "--streaming needs --max_steps",
        "--fold 0": "--view query_document",
        "--negatives easy": "--negatives has no easy",
        "--view query_document --folds 5 --fold 5": "--fold 5",
        "--view query_document --negatives bm25 --negatives_min_rank 100": "--negatives_min_rank",
        "--objective momentum_contrast --mlm_weight 0.1": "mlm_weight",
        "--objective info_nce --momentum_queue_size 8": "momentum_queue_size",
        "--contrastive_weight 0 --mlm_weight 0": "contrastive_weight",
        "--max_seq_length 513": "512 tokens",
        "--lora_r 4": "--lora_r adapts a pretrained encoder",
        "--corpus FOLDER/nowhere.jsonl": "There is no",
    },
    "run_probe_classification": {
        "--heads svm": "--heads has no svm",
        "--heads setfit --shots 0": "give --shots",
        "--probe_preset paper": "--probe_preset has no paper",
        "--model_name_or_path A=a,a": "each once",
        "--model_name_or_path FOLDER/nowhere": "There is no",
        "--hub_token hf_CanaryCanaryCanary": "HF_TOKEN",
    },
    "run_aan_retrieval": {"--heads linear": "--heads has no linear"},
    "run_document_retrieval": {
        "--methods colbert": "--methods has no colbert",
        "--folds nowhere.json": "--folds nowhere.json",
        "--fold 0 --selection_split dev": "leave out --selection_split",
    },
    "run_embedding_analysis": {
        "--analyses colour": "--analyses has no colour",
        "--push_results --analyses map": "add clustering",
    },
    "adapt": {
        "--recipe docsplit": "is for --train",
        "--train --recipe nowhere": "nowhere",
        "--token hf_CanaryCanaryCanary": "HF_TOKEN",
    },
    "search query": {"--method dence": "Did you mean dense?"},
    "explore": {"--model FOLDER": "is no index", "--output FOLDER": "is a folder"},
    "convert_to_longformer": {"--attention_window 33": "--attention_window"},
}


@dataclass(frozen=True)
class Case:
    """Words of a script that are wrong together, and what the line about them must say."""

    script: str
    words: str
    says: str


class WorkBegins(Exception):
    """Nothing was refused."""


def parser_of(script: str) -> CommandParser:
    """Take the parser that a script makes, without running the script; of `search VERB`, the verb's."""
    name, _, verb = script.partition(" ")
    parsers = []

    def take(parser: CommandParser, *_: object, **__: object) -> None:
        parsers.append(parser)
        raise WorkBegins

    module = importlib.import_module(name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(WorkBegins))
        stack.enter_context(mock.patch.object(CommandParser, "parse_known_args", take))
        stack.enter_context(mock.patch.object(sys, "argv", [f"{name}.py"]))
        module.main()
    (parser,) = parsers
    return verbs_of(parser)[verb] if verb else parser


def verbs_of(parser: CommandParser) -> dict[str, CommandParser]:
    """Return the parsers of a script's verbs, by their names."""
    return {
        verb: of_verb
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for verb, of_verb in action.choices.items()
    }


def numbers_of(parser: CommandParser) -> dict[str, type]:
    """Return the options of a parser that take numbers, each with int or float."""
    return {action.dest: action.type for action in parser._actions if action.type in (int, float)}


def wrong_numbers(bound: Bound, kind: type) -> list[str]:
    """Return numbers beyond both limits, and some that no option takes."""
    values = [bound.least, bound.least - 1, bound.most, bound.most + 1, -2, 2.5, 2**70, float("nan"), float("inf")]
    values = [value for value in values if value != -float("inf")]  # argparse takes -inf for an option's name
    of_kind = [kind(value) for value in values if kind is float or float(value).is_integer()]
    return list(dict.fromkeys(str(value) for value in of_kind if not bound.holds(value)))


def cases(count: int = 150, seed: int = 0) -> list[Case]:
    """Make combinations: all of `WRONG`, a wrong number for each option that takes one, and others up to `count`."""
    rng = random.Random(seed)
    wrong = [Case(script, words, says) for script, lines in WRONG.items() for words, says in lines.items()]
    others = []
    for script in RIGHT:
        parser = parser_of(script)
        for name, kind in numbers_of(parser).items():
            values = wrong_numbers(parser.bounds.get(name, Bound()), kind)
            rng.shuffle(values)
            first, *rest = [Case(script, f"--{name} {value}", f"--{name} ") for value in values]
            wrong.append(first)
            others += rest
    wrong += rng.choices(others, k=max(count - len(wrong), 0))
    return [Case(case.script, f"{RIGHT[case.script]} {case.words}", case.says) for case in wrong]


def refusal(script: str, words: str, folder: Path) -> list[str]:
    """Run a script as its command, up to where its work would begin, and return the lines that it prints.

    Raises:
        WorkBegins: if it refuses nothing.
        Exception: if it would end with a traceback.
    """
    name = script.partition(" ")[0]
    (folder / "file").touch()
    typed = [word.replace("FOLDER", str(folder)).replace("FILE", str(folder / "file")) for word in words.split()]
    module, printed = importlib.import_module(name), io.StringIO()
    importlib.import_module("docsplit.index.changes")  # else it would keep what takes the place of `Index`
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(printed))
        stack.enter_context(mock.patch.object(sys, "argv", [f"{name}.py", *typed]))
        for place in WORK[name]:
            stack.enter_context(mock.patch(place, FirstWork))
        with contextlib.suppress(SystemExit):
            module.command()
    return printed.getvalue().splitlines()


class FirstWork:
    """Stands in for the function or class that does the first piece of work."""

    def __init__(self, *_: object, **__: object):
        raise WorkBegins


def unrefused(wrong: list[Case]) -> Iterator[str]:
    """Yield a line for each combination that is not refused in one line that says what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        for case in wrong:
            try:
                lines = refusal(case.script, case.words, Path(folder))
            except Exception as error:
                yield f"{case.script} {case.words}: {type(error).__name__}: {error}"
                continue
            says = case.says.replace("FILE", str(Path(folder, "file")))
            if len(lines) != 1 or not lines[0].startswith("error: ") or says not in lines[0] or CANARY in lines[0]:
                yield f"{case.script} {case.words}: should say {case.says!r}, and says {lines}"


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("count", type=int)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    made = cases(given.count, given.seed)
    problems = list(unrefused(made))
    print(*problems, f"{len(made)} combinations, {len(problems)} not refused as they should be", sep="\n")
    sys.exit(bool(problems))
