"""Each pretraining recipe, for a few steps, with a tiny encoder of the architecture that it names."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BigBirdConfig,
    LongformerConfig,
    ModernBertConfig,
    PreTrainedConfig,
)

import run_docsplit_pretraining
from docsplit.data.sets.set_arguments import CitationArguments, LabelledArguments
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.task_arguments import LinkArguments, ProbeArguments
from docsplit.runtime.options import parse_arguments
from docsplit.training.run_arguments import ARGUMENTS, OBJECTIVES
from tests.conftest import tiny_values, weights_of

ROOT = Path(__file__).parents[2]
ARCHITECTURES = {  # recipe: of the checkpoint that it starts from
    "docsplit_bert": "bert",
    "docsplit_long": "longformer",
    "ct_bert": "bert",
    "contriever_moco": "bert",
    "ict": "bert",
    "mlm": "bert",
    "longformer_bregman": "longformer",
    "docsplit_bigbird": "big_bird",
    "docsplit_modernbert": "modernbert",
    "docsplit_bert_lora": "bert",
    "graph_document_retrieval": "bert",
}
GRAPHS = ("graph_document", "graph_document_retrieval")  # whose passage encoder that is


def config_of(architecture: str, tokenizer) -> PreTrainedConfig:
    values = tiny_values(tokenizer, max_position_embeddings=200)
    return {
        "bert": lambda: BertConfig(**values),
        "longformer": lambda: LongformerConfig(**values, attention_window=[16, 16]),
        "big_bird": lambda: BigBirdConfig(**values, block_size=4, num_random_blocks=1),
        "modernbert": lambda: ModernBertConfig(**values),
    }[architecture]()


@pytest.fixture
def run(wordpiece, corpus_file, tmp_path, monkeypatch):
    """Run a recipe from a tiny checkpoint; returns this, the output, and the options that it got."""

    def run(name: str, **overrides) -> tuple[Path, Path, dict]:
        path = ROOT / "recipes" / f"{name}.yaml"
        recipe = yaml.safe_load(path.read_text())
        start, output_dir = tmp_path / "start", tmp_path / "out"
        torch.manual_seed(0)
        AutoModelForMaskedLM.from_config(config_of(ARCHITECTURES[name], wordpiece)).save_pretrained(start)
        wordpiece.save_pretrained(start)
        options = {
            "model_name_or_path": start, "corpus": corpus_file, "output_dir": output_dir, "max_seq_length": 64,
            "max_steps": 2, "per_device_train_batch_size": max(recipe["per_device_train_batch_size"] // 4, 8),
            "save_steps": 2, "logging_steps": 1, "use_cpu": True, "bf16": False, "dataloader_num_workers": 0,
            "preprocessing_num_workers": 1, "disable_tqdm": True, "warmup_steps": 1, "micro_batch_tokens": 300,
        } | overrides  # fmt: skip
        if name in GRAPHS:
            options |= {"per_device_train_batch_size": 24, "passage_words": 12}
            options |= {"config_overrides": "graph_hidden_size=16,graph_kind=section"}
        for small, value in {"momentum_queue_size": 40, "probe_corpus": corpus_file}.items():
            options |= {small: value} if recipe.get(small) else {}
        argv = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        monkeypatch.setattr(sys, "argv", ["run_docsplit_pretraining.py", str(path), *argv])
        run_docsplit_pretraining.main()
        return start, output_dir, recipe | options

    return run


@pytest.mark.parametrize("path", [*(ROOT / "recipes").glob("*.yaml")], ids=lambda path: path.stem)
def test_a_recipe_is_parsed(path, tmp_path):
    name, text, words = path.stem, path.read_text(), [str(path), "--output_dir", str(tmp_path)]
    if name.startswith(("probe_", "retrieval_")):
        types = (LabelledArguments, ProbeArguments) if "probe" in name else (CitationArguments, LinkArguments)
        parse_arguments((EncoderArguments, *types), "", [*words, "--model_name_or_path", "a"])
    else:
        words += ["--model_name_or_path", "a"] if "model_name_or_path: " in text else []  # else from a random start
        words += ["--fold", "0"] if "fold: ???" in text else []
        parse_arguments(ARGUMENTS, "", [*words, "--corpus", "b", "--use_cpu"], chosen_by=OBJECTIVES)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("docsplit_bert", {
            "view": "docsplit", "pooling": "cls", "contrastive_temperature": 0.05, "mlm_weight": 0.1,
            "per_device_train_batch_size": 36, "learning_rate": 5e-5, "num_train_epochs": 1,
        }),
        ("longformer_bregman", {
            "view": "simcse", "pooling": "mean", "max_seq_length": 4096, "bregman_weight": 2, "bregman_sigma": 2,
            "bregman_subnetworks": 10, "bregman_batch_norm": True, "bregman_temperature": 0.1, "max_steps": 50_000,
        }),
        ("graph_document", {
            "view": "passages", "passage_words": 100, "similarity": "dot", "contrastive_temperature": 1,
            "symmetric_loss": True, "mlm_weight": 0, "per_device_train_batch_size": 1536, "warmup_steps": 0.1,
        }),
    ],
)  # fmt: skip
def test_a_recipe_has_the_settings_of_its_paper_defaults_too(name, settings, tmp_path):
    words = [name, "--use_cpu", "--model_name_or_path", "start", "--output_dir", str(tmp_path)]
    *parts, given = parse_arguments(ARGUMENTS, "", words, chosen_by=OBJECTIVES)
    found = {option: value for part in parts for option, value in vars(part).items()}
    found |= vars(OBJECTIVES[found["objective"] or "info_nce"].Options(**given))
    assert {option: found[option] for option in settings} == settings


@pytest.mark.parametrize(("name", "architecture"), ARCHITECTURES.items(), ids=ARCHITECTURES)
def test_a_recipe_trains(name, architecture, run, caplog):
    caplog.set_level("INFO")
    start, output_dir, options = run(name)
    config = json.loads((output_dir / "config.json").read_text())
    assert config["model_type"] == ("graph_document" if name in GRAPHS else architecture)
    for setting, value in config["docsplit"].items():
        assert value == options.get(setting, value), setting
    before, after = (AutoModel.from_pretrained(folder) for folder in (start, output_dir))
    before, after = before.state_dict(), (after.passage_encoder if name in GRAPHS else after).state_dict()
    assert any((before[key] != after[key]).any() for key in before if "pooler" not in key)
    assert all(value.isfinite().all() for value in after.values())
    results = json.loads((output_dir / "all_results.json").read_text())
    assert results["global_step"] == 2
    log = json.loads((output_dir / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    logged = next(entry.keys() for entry in log if "loss" in entry)
    assert ("effective_rank" in logged) == (name != "mlm")
    watched = {"info_nce_loss", "bregman_loss", "subnetworks_active", "subnetworks_entropy"}
    assert watched & logged == (watched if "bregman" in name else set())


def test_what_a_recipe_trained_goes_on_by_the_command_of_its_card(run, run_here, corpus_file, tmp_path, caplog):
    _, output_dir, options = run("graph_document_retrieval")
    caplog.set_level("INFO")
    (command,) = re.findall(
        r"^    accelerate launch run_docsplit_pretraining.py (.*)$", (output_dir / "README.md").read_text(), re.M
    )
    words = shlex.split(command.replace(" out ", f" {output_dir} ").replace("YOUR_DOCUMENTS", str(corpus_file)))
    assert words[:2] == ["--model_name_or_path", str(output_dir)]
    few = ["--max_steps", 1, "--per_device_train_batch_size", 8, "--use_cpu", "--bf16", "false"]
    run_here(run_docsplit_pretraining.main, *words, *few, "--output_dir", tmp_path / "more")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (output_dir, tmp_path / "more"))
    assert before["docsplit"]["view"] == options["view"]
    assert before == after
    assert f"Taken from {output_dir}: view {options['view']}" in caplog.text


@pytest.mark.parametrize(("name", "prefix"), [("docsplit_bert_lora", "adapter."), ("contriever_moco", "objective.")])
def test_the_best_weights_come_with_their_own_training_state(name, prefix, run):
    """The first step has a learning rate of 0, the second one that ruins the encoder: the first checkpoint is best."""
    _, output_dir, _ = run(
        name, learning_rate=0.5, save_steps=1, eval_steps=1, eval_strategy="steps", max_eval_samples=20,
        load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=False, save_total_limit=5,
        per_device_eval_batch_size=8,
    )  # fmt: skip
    state = json.loads((output_dir / "checkpoint-2" / "trainer_state.json").read_text())
    best = Path(state["best_model_checkpoint"])
    assert best.name != "checkpoint-2"
    of_best, of_last = (load_file(folder / "model.safetensors") for folder in (best, output_dir / "checkpoint-2"))
    assert any(key.startswith(prefix) and not torch.equal(value, of_last[key]) for key, value in of_best.items())
    if prefix == "adapter.":
        final = load_file(output_dir / "adapter" / "adapter_model.safetensors")
        assert all(any(torch.equal(value, other) for other in of_best.values()) for value in final.values())
    weights, expected = (weights_of(folder) for folder in (output_dir, best))
    of_encoder = {key.removeprefix("bert."): value for key, value in expected.items() if key.startswith("bert.")}
    assert of_encoder
    assert all(torch.equal(weights[key], value) for key, value in of_encoder.items())
