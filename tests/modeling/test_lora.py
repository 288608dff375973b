"""LoRA: what is trained, what a checkpoint of it is for others, and that resuming is exact."""

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, BigBirdConfig, Trainer, TrainingArguments

from docsplit.data import preparation
from docsplit.data.collators import DocSplitCollator
from docsplit.modeling.saving import ADAPTER_FOLDER
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import tiny_config
from tests.modeling.test_modeling_docsplit import CONFIGS, SMALL, double_model, loss_and_gradients, random_batch


@pytest.fixture(scope="module")
def start(wordpiece, tmp_path_factory):
    """The encoder that is adapted."""
    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(0)
    DocSplitForContrastivePretraining(tiny_config(wordpiece), pooling="mean", max_seq_length=32).save_pretrained(
        folder
    )
    wordpiece.save_pretrained(folder)
    return folder


def load(start):
    model = DocSplitForContrastivePretraining.from_pretrained(start)
    torch.manual_seed(1)
    model.add_lora(4)
    return model


def train(corpus, tokenizer, start, output_dir, checkpoint=None, load_state=True, **options):
    model = load(start)
    dataset = preparation.tokenize(corpus, tokenizer)[0].with_format("numpy")
    arguments = TrainingArguments(
        output_dir=str(output_dir), use_cpu=True, per_device_train_batch_size=10, max_steps=6, save_steps=3,
        learning_rate=1e-2, remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", report_to="none",
    )  # fmt: skip
    trainer = Trainer(model, arguments, DocSplitCollator(tokenizer, max_seq_length=32), dataset)
    if checkpoint is not None and load_state:
        model.load_training_state(checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    return model


@pytest.fixture(scope="module")
def trained(corpus, wordpiece, start, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("trained")
    return train(corpus, wordpiece, start, output_dir), output_dir


def test_the_adapter_alone_is_trained(trained, start):
    model, _ = trained
    before = load(start).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (".lora_" not in name), name
    assert {name.split(".")[-3] for name, p in model.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}


def test_a_checkpoint_is_a_plain_encoder_with_the_updates_merged(trained, start, corpus, wordpiece):
    model, output_dir = trained
    model.eval()
    batch = wordpiece(corpus["text"][:4], padding=True, truncation=True, max_length=32, return_tensors="pt")
    with torch.no_grad():
        logits = model.encoder(**batch).logits
        states = model.encoder.base_model(**batch).last_hidden_state
    checkpoint = output_dir / "checkpoint-6"
    plain = AutoModelForMaskedLM.from_pretrained(checkpoint).eval()
    again = DocSplitForContrastivePretraining.from_pretrained(checkpoint)
    unadapted = AutoModelForMaskedLM.from_pretrained(start, variant="mlm").eval()
    adapted = PeftModel.from_pretrained(AutoModel.from_pretrained(start), checkpoint / ADAPTER_FOLDER).eval()
    with torch.no_grad():
        torch.testing.assert_close(plain(**batch).logits, logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(adapted(**batch).last_hidden_state, states, rtol=1e-5, atol=1e-5)
        assert (unadapted(**batch).logits - logits).abs().max() > 1e-2
    assert again.config.docsplit == model.config.docsplit
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
    untied = set(plain.state_dict()) - set(plain.all_tied_weights_keys)
    assert set(load_file(checkpoint / "model.safetensors")) == untied


def test_a_resumed_training_is_the_uninterrupted_one(trained, start, corpus, wordpiece, tmp_path):
    model, output_dir = trained
    checkpoint = str(output_dir / "checkpoint-3")
    resumed = train(corpus, wordpiece, start, tmp_path / "resumed", checkpoint)
    for name, value in model.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    with pytest.raises(RuntimeError, match="load_training_state"):
        train(corpus, wordpiece, start, tmp_path / "lost", checkpoint, load_state=False)


def test_merged_weights_can_be_loaded_as_the_best_ones_are(trained, start, tmp_path):
    """At the end of a training, Trainer loads the best checkpoint without asking for its adapter."""
    model, output_dir = trained
    other = load(start)
    other.load_state_dict(load_file(output_dir / "checkpoint-6" / "model.safetensors"), strict=False)
    batch = random_batch(longest=32)
    with torch.no_grad():
        torch.testing.assert_close(other.eval()(**batch).loss, model.eval()(**batch).loss, rtol=1e-4, atol=1e-5)
    other.save_pretrained(tmp_path / "checkpoint-1")
    # The adapter would be empty: the script copies that of the best checkpoint
    assert not (tmp_path / "checkpoint-1" / ADAPTER_FOLDER).exists()
    folders = (tmp_path / "checkpoint-1", output_dir / "checkpoint-6")
    first, second = (load_file(folder / "model.safetensors") for folder in folders)
    for name, value in second.items():
        torch.testing.assert_close(first[name], value, msg=name)


def test_another_start_or_another_model_is_noticed(trained, start):
    _, output_dir = trained
    weights = load_file(output_dir / "checkpoint-3" / "model.safetensors")
    other = load(start)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.endswith("query.base_layer.weight"):
                parameter.add_(0.1)
    other.load_training_state(output_dir / "checkpoint-3")
    with pytest.raises(RuntimeError, match="did not start from these weights"):
        other.load_state_dict(dict(weights), strict=False)
    with pytest.raises(RuntimeError, match="does not fit"):
        load(start).load_state_dict({"nonsense": torch.zeros(2)}, strict=False)


@pytest.mark.parametrize("name", [*CONFIGS, "big_bird"])
def test_other_architectures_have_matrices_to_adapt(name):
    if name == "big_bird":  # which has a pooler, of no use, in its base model
        config = BigBirdConfig(**SMALL, attention_type="original_full")
        model = DocSplitForContrastivePretraining(config, max_seq_length=64).double().eval()
    else:
        model = double_model(name)
    before = model(**random_batch()).loss
    model.add_lora(2)
    torch.testing.assert_close(model(**random_batch()).loss, before)  # the updates start at zero
    _, gradients = loss_and_gradients(model, random_batch())
    assert all(".lora_" in key for key in gradients)
    assert any(gradient.abs().max() > 0 for gradient in gradients.values())


def test_what_does_not_go_together_raises(start, tmp_path):
    model = DocSplitForContrastivePretraining.from_pretrained(
        start, objective="momentum_contrast", momentum_queue_size=8, mlm_weight=0.0
    )
    with pytest.raises(ValueError, match="LoRA does not go"):
        model.add_lora(2)
    with pytest.raises(FileNotFoundError, match="without LoRA"):
        load(start).load_training_state(tmp_path)
