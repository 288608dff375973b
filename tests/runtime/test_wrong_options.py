"""Wrong options of every script are one line before any work, and right ones are not refused; all in one process."""

import argparse
import contextlib
import importlib
import sys
from unittest import mock

import pytest

from docsplit.runtime.bounds import Bound
from docsplit.runtime.options import CommandParser
from tests.processes import ROOT

WORK = {  # where the work of a script begins
    "run_docsplit_pretraining": ["docsplit.training.run.load_data"],
    "run_probe_classification": ["docsplit.evaluation.compare.compare"],
    "run_aan_retrieval": ["docsplit.evaluation.compare.compare"],
    "run_document_retrieval": ["docsplit.evaluation.compare.compare"],
    "run_embedding_analysis": ["docsplit.evaluation.compare.compare"],
    "adapt": ["docsplit.training.adapting.adapt"],
    "search": ["docsplit.embedding.encoder.Encoder", "docsplit.index.api.Index"],
    "classify": ["docsplit.classifier.Classifier.load"],
    "explore": ["docsplit.embedding.encoder.Encoder"],
    "convert_to_longformer": ["docsplit.modeling.start.load_start"],
    "export_onnx": ["docsplit.modeling.loading.load_encoder"],
}
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
    "classify predict": f"predict FOLDER {DOCUMENTS}",
    "explore": "FOLDER --map pca",
    "convert_to_longformer": "FOLDER FOLDER/out",
    "export_onnx": "FOLDER FOLDER/out",
}
WRONG = [  # what is added to the words of a script, and what the line must say
    ("run_docsplit_pretraining", "--num_train_epochs -1 --max_steps -1", "--num_train_epochs"),
    ("run_docsplit_pretraining", "--fp16", "needs a GPU"),
    ("run_docsplit_pretraining", "--model_type brt", "Did you mean bert?"),
    ("run_docsplit_pretraining", "--config_overrides hidden_size=33", "--config_overrides"),
    ("run_docsplit_pretraining", "--model_type graph_document --config_overrides graph_kind=nonsense", "graph_kind"),
    ("run_docsplit_pretraining", "--optim nonsense", "--optim"),
    ("run_docsplit_pretraining", "--lr_scheduler_kwargs {bad", "transformers refuses these options"),
    ("run_docsplit_pretraining", "--lr_scheduler_kwargs [1]", "give JSON"),
    ("run_docsplit_pretraining", '--lr_scheduler_type polynomial --lr_scheduler_kwargs {"lr_end":NaN}', "lr_end=nan"),
    ("run_docsplit_pretraining", "--ddp_backend nonsense", "--ddp_backend"),
    ("run_docsplit_pretraining", "--metric_for_best_model accuracy --eval_strategy steps", "has no accuracy"),
    ("run_docsplit_pretraining", "--load_best_model_at_end", "there are none"),
    ("run_docsplit_pretraining", "--early_stopping_patience 3", "needs --load_best_model_at_end"),
    ("run_docsplit_pretraining", "--eval_strategy steps --per_device_eval_batch_size 1", "without negatives"),
    ("run_docsplit_pretraining", "--per_device_train_batch_size 1", "no negatives"),
    ("run_docsplit_pretraining", "--fsdp full_shard", "--fsdp"),
    ("run_docsplit_pretraining", "--hub_token hf_CanaryCanaryCanary", "HF_TOKEN"),
    ("run_docsplit_pretraining", "--push_to_hub hf_CanaryCanaryCanary", "hf_..."),
    ("run_docsplit_pretraining", "--output_dir FILE", "FILE cannot be written"),
    ("run_docsplit_pretraining", "--resume_from_checkpoint FOLDER", "Cannot resume from"),
    ("run_docsplit_pretraining", "--streaming", "--streaming needs --max_steps"),
    ("run_docsplit_pretraining", "--view query_document --folds 5 --fold 5", "--fold 5"),
    ("run_docsplit_pretraining", "--objective momentum_contrast --mlm_weight 0.1", "mlm_weight"),
    ("run_docsplit_pretraining", "--objective info_nce --momentum_queue_size 8", "momentum_queue_size"),
    ("run_docsplit_pretraining", "--contrastive_weight 0 --mlm_weight 0", "contrastive_weight"),
    ("run_docsplit_pretraining", "--max_seq_length 513", "512 tokens"),
    ("run_docsplit_pretraining", "--lora_r 4", "--lora_r adapts a pretrained encoder"),
    ("run_docsplit_pretraining", "--corpus FOLDER/nowhere.jsonl", "There is no"),
    ("run_probe_classification", "--heads svm", "--heads has no svm"),
    ("run_probe_classification", "--heads setfit --shots 0", "give --shots"),
    ("run_probe_classification", "--model_name_or_path A=a,a", "each once"),
    ("run_probe_classification", "--model_name_or_path FOLDER/nowhere", "There is no"),
    ("run_aan_retrieval", "--heads linear", "--heads has no linear"),
    ("run_document_retrieval", "--folds nowhere.json", "--folds nowhere.json"),
    ("run_document_retrieval", "--fold 0 --selection_split dev", "leave out --selection_split"),
    ("run_embedding_analysis", "--analyses colour", "--analyses has no colour"),
    ("run_embedding_analysis", "--push_results --analyses map", "add clustering"),
    ("adapt", "--recipe docsplit", "is for --train"),
    ("adapt", "--train --recipe nowhere", "nowhere"),
    ("search query", "--method dence", "Did you mean dense?"),
    ("search clusters", "--count 0", "--count: give a number of at least 1, not 0"),
    ("search query", "--weight 2", "--weight"),
    ("classify predict", "--unsure 50", "--unsure"),
    ("explore", "--model FOLDER", "is no index"),
    ("explore", "--output FOLDER", "is a folder"),
    ("convert_to_longformer", "--attention_window 33", "--attention_window"),
]


class WorkBegins(Exception):
    """Nothing was refused."""


def refusal(script, words, folder, capsys):
    """Run a script as its command, up to where its work would begin, and return the lines that it prints."""
    name = script.partition(" ")[0]
    (folder / "file").touch()
    typed = f"{RIGHT[script]} {words}".replace("FOLDER", str(folder)).replace("FILE", str(folder / "file")).split()
    module = importlib.import_module(name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [f"{name}.py", *typed]))
        for place in WORK[name]:
            stack.enter_context(mock.patch(place, mock.Mock(side_effect=WorkBegins)))
        with contextlib.suppress(SystemExit):
            module.command()
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(("script", "words", "says"), WRONG)
def test_what_is_wrong_is_one_line_before_any_work(script, words, says, tmp_path, capsys):
    (line,) = refusal(script, words, tmp_path, capsys)
    assert line.startswith("error: ")
    assert says.replace("FILE", str(tmp_path / "file")) in line
    assert "Canary" not in line  # of a token


@pytest.mark.parametrize("script", RIGHT)
def test_what_is_right_is_not_refused(script, tmp_path, capsys):
    """So that above is refused for what is wrong in it."""
    with pytest.raises(WorkBegins):
        refusal(script, "", tmp_path, capsys)


def parsers_of(script):
    """The parser that a script makes, without running the script, or those of its verbs."""
    parsers = []

    def take(parser, *_, **__):
        parsers.append(parser)
        raise WorkBegins

    with (
        contextlib.suppress(WorkBegins),
        mock.patch.object(CommandParser, "parse_known_args", take),
        mock.patch.object(sys, "argv", [f"{script}.py"]),
    ):
        importlib.import_module(script).main()
    verbs = [action.choices for action in parsers[0]._actions if isinstance(action, argparse._SubParsersAction)]
    return [*parsers, *(parser for each in verbs for parser in each.values())]


def test_every_option_that_takes_a_number_has_a_bound():
    scripts = {*(script.partition(" ")[0] for script in RIGHT), "reproduce"}
    actions = [action for script in scripts for parser in parsers_of(script) for action in parser._actions]
    assert not {action.dest for action in actions if action.type in (int, float)}
    unbounded = {action.dest for action in actions if action.type in (Bound(kind=int), Bound(kind=float))}
    assert unbounded == {"negatives_margin", "threshold"}
