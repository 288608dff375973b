"""Recipes that name a paper's table have the paper's settings: each is parsed as its script does, and compared."""

import re
from pathlib import Path

import pytest

from docsplit.data.sets.arguments import CitationArguments, LabelledArguments
from docsplit.embedding.arguments import EncoderArguments
from docsplit.evaluation.arguments import LinkArguments, ProbeArguments
from docsplit.evaluation.classification import head_of
from docsplit.runtime.options import parse_arguments
from docsplit.training.arguments import ARGUMENTS, OBJECTIVES

RECIPES = Path(__file__).parents[2] / "recipes"

# What the papers say. Where a paper is silent, and our choice is a comment `open`, nothing is listed.
DOCSPLIT = {
    "model_name_or_path": "bert-base-uncased", "corpus": "wikimedia/wikipedia:20231101.en", "view": "docsplit",
    "objective": "info_nce", "pooling": "cls", "contrastive_temperature": 0.05, "mlm_weight": 0.1,
    "per_device_train_batch_size": 36, "learning_rate": 5e-5, "num_train_epochs": 1, "optim": "adamw_torch_fused",
}  # fmt: skip
DOCSPLIT_PROBE = {
    "heads": ["mlp", "linear", "knn"], "probe_preset": "docsplit", "max_seq_length": 512, "num_draws": 10,
    "shots": [5], "mlp.learning_rate": 3e-4, "mlp.batch_size": 8, "long_documents": "truncate",
}  # fmt: skip
LONGFORMER = {
    "model_name_or_path": "outputs/longformer_da", "corpus": "coastalcph/lex_glue:scotus",
    "view": "simcse", "objective": "info_nce", "pooling": "mean", "max_seq_length": 4096, "mlm_weight": 0,
    "per_device_train_batch_size": 2, "learning_rate": 3e-5, "max_steps": 50_000, "optim": "adamw_torch_fused",
    "lr_scheduler_type": "linear", "weight_decay": 0.01,  # of the authors' code
}  # fmt: skip
BREGMAN_PROBE = {
    "heads": ["mlp", "linear"], "probe_preset": "bregman", "pooling": "mean", "long_documents": "truncate",
    **{f"{head}.{name}": value for head in ("mlp", "linear") for name, value in {
        "learning_rate": 1e-4, "patience": 3, "monitor": "micro_f1",
    }.items()}, "mlp.activation": "tanh", "mlp.hidden_layer": True, "linear.hidden_layer": False,
    "finetuning.learning_rate": 3e-5,
}  # fmt: skip
GRAPH = {
    "model_name_or_path": "roberta-base", "corpus": "Skylion007/openwebtext", "model_type": "graph_document",
    "config_overrides": "graph_hidden_size=512,graph_layers=2,graph_heads=2", "view": "passages",
    "passage_words": 100, "similarity": "dot", "contrastive_temperature": 1, "symmetric_loss": True, "mlm_weight": 0,
    "per_device_train_batch_size": 1536, "learning_rate": 5e-5, "num_train_epochs": 10, "optim": "adamw_torch_fused",
    "weight_decay": 0, "warmup_steps": 0.1,
}  # fmt: skip
RANKING = {"view": "query_document", "warmup_steps": 0.1}
PAPERS = {
    "docsplit_bert": DOCSPLIT,
    "docsplit_long": DOCSPLIT
    | {"model_name_or_path": "allenai/longformer-base-4096", "per_device_train_batch_size": 12},
    "simcse_long": DOCSPLIT | {"view": "simcse"},
    "probe_20news": DOCSPLIT_PROBE | {"shots": [5, 10, 20]},
    "probe_arxiv": DOCSPLIT_PROBE | {"shots": [10]},
    "probe_bbc": DOCSPLIT_PROBE,
    "probe_fakenews": DOCSPLIT_PROBE | {"shots": [10]},
    "probe_nyt": DOCSPLIT_PROBE,
    "retrieval_aan": {
        "heads": ["mlp", "cosine", "bm25", "popularity"], "probe_preset": "docsplit", "lra_dir": "data/aan",
        "max_seq_length": 512, "long_documents": "truncate",
    },
    "longformer_da_simcse": LONGFORMER | {"contrastive_temperature": 0.05},
    "longformer_bregman": LONGFORMER | {
        "contrastive_temperature": 0.05, "objective": "info_nce+bregman", "bregman_weight": 2, "bregman_sigma": 2,
        "bregman_subnetworks": 10, "bregman_batch_norm": True, "bregman_temperature": 0.1,
    },
    "probe_ecthr": BREGMAN_PROBE | {"mlp.max_epochs": 20, "max_seq_length": None},
    "probe_scotus": BREGMAN_PROBE | {"mlp.max_epochs": 30, "max_seq_length": None, "shots": [8, 16]},
    "probe_mimic": BREGMAN_PROBE | {"mlp.max_epochs": 10, "max_seq_length": 2048},
    "graph_document": GRAPH,
    "graph_document_retrieval": GRAPH
    | {"view": "passage_vs_rest", "symmetric_loss": False, "per_device_train_batch_size": 1024},
    "ranking_robust04": RANKING | {
        "folds": "data/robust04/folds.json", "negatives": ["random"], "negatives_per_query": 8,
        "num_train_epochs": 10, "per_device_train_batch_size": 32, "learning_rate": 5e-5, "eval_strategy": "epoch",
    },
    "ranking_msmarco": RANKING | {
        "negatives": ["bm25", "self"], "negatives_per_query": 1, "negatives_depth": 100, "num_train_epochs": 10,
        "per_device_train_batch_size": 128, "max_eval_samples": 100,
    },
    "ranking_wikir": RANKING | {
        "negatives": ["bm25"], "negatives_per_query": 1, "negatives_depth": 100, "num_train_epochs": 5,
        "per_device_train_batch_size": 128, "learning_rate": 2e-5, "max_eval_samples": 1000,
    },
}  # fmt: skip
TO_GIVE = {"model_name_or_path": "start", "output_dir": "outputs/given", "fold": "0"}  # where a recipe has ???


def settings_of(name: str) -> dict:
    """All options that a recipe's script gets from it, the defaults too, and those of the heads as `mlp.NAME`."""
    path = RECIPES / f"{name}.yaml"
    words, text = [str(path)], path.read_text()
    if name.startswith("probe_") or name == "retrieval_aan":
        types = (
            (LabelledArguments, ProbeArguments) if name.startswith("probe_") else (CitationArguments, LinkArguments)
        )
        parts = parse_arguments((EncoderArguments, *types), "", [*words, "--model_name_or_path", "a"])
        settings = {option: value for part in parts for option, value in vars(part).items()}
        if isinstance(args := parts[-1], ProbeArguments):
            for head in ("mlp", "linear"):
                function, _ = head_of(head, args.probe_preset, max_epochs=args.probe_epochs)
                training = getattr(function, "keywords", {}).get("training")
                settings |= {f"{head}.{option}": value for option, value in vars(training).items()} if training else {}
            settings |= {f"finetuning.{option}": value for option, value in vars(args.finetuning).items()}
        return settings
    for option, value in TO_GIVE.items():
        words += [f"--{option}", value] if re.search(rf"^{option}: \?\?\?", text, re.M) else []
    *parts, given = parse_arguments(ARGUMENTS, "", [*words, "--use_cpu"], chosen_by=OBJECTIVES)
    settings = {option: value for part in parts for option, value in vars(part).items()}
    settings["objective"] = settings["objective"] or "info_nce"
    return settings | vars(OBJECTIVES[settings["objective"]].Options(**given))


def test_each_recipe_that_names_a_table_of_a_paper_is_compared():
    named = {path.stem for path in RECIPES.glob("*.yaml") if re.search(r"\b[Tt]ables? \d", path.read_text())}
    assert named == set(PAPERS)


@pytest.mark.parametrize("name", PAPERS)
def test_a_recipe_has_the_papers_settings(name):
    settings = settings_of(name)
    assert {option: settings[option] for option in PAPERS[name]} == PAPERS[name]
