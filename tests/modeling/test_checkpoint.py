"""Checkpoints: each loader finds what it looks for, and the rest is training state; LoRA is merged and kept beside."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, BertModel, Trainer, TrainingArguments

from docsplit.data.collators import DocSplitCollator
from docsplit.data.preparation import tokenize
from docsplit.modeling import checkpoint as saving
from docsplit.modeling.checked_files import HEAD_FILE, HEAD_INDEX
from docsplit.modeling.checkpoint import ADAPTER_FOLDER
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import make_corpus, save_checkpoint, tiny_config
from tests.modeling.test_checked_files import assert_equal, configs, load_reports, saved
from tests.modeling.test_modeling_docsplit import random_batch

from_pretrained = DocSplitForContrastivePretraining.from_pretrained
from_config = DocSplitForContrastivePretraining.from_config


@pytest.mark.parametrize("where", ["encoder", "adapter", "objective"])
def test_weights_that_are_not_finite_are_not_written(where, wordpiece, tmp_path):
    """A release that is there loses nothing, its head included."""
    settings = {"objective": "momentum_contrast", "momentum_queue_size": 8, "mlm_weight": 0}
    settings = settings if where == "objective" else {}
    model = from_config(tiny_config(wordpiece), wordpiece, pooling="mean", max_seq_length=64, **settings)
    if where == "adapter":
        model.add_lora(2)
    model.save_pretrained(tmp_path / "good")
    before = {file: file.read_bytes() for file in (tmp_path / "good").rglob("*") if file.is_file()}
    with torch.no_grad():
        values = model.objective.buffers() if where == "objective" else model.encoder.parameters()
        [value for value in values if value.is_floating_point()][-1].view(-1)[0] = torch.nan
    for name in ("bad", "good"):
        with pytest.raises(FloatingPointError, match="objective" if where == "objective" else "1 of .* not finite"):
            model.save_pretrained(tmp_path / name)
    assert not list((tmp_path / "bad").glob("*"))
    assert {file: file.read_bytes() for file in (tmp_path / "good").rglob("*") if file.is_file()} == before


# --- A release -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mlm_weight"),
    [("bert", 0.0), ("bert", 0.1), ("roberta", 0.1), ("modernbert", 0.1), ("distilbert", 0.1), ("longformer", 0.1)],
)
def test_a_release_has_what_each_loader_looks_for_and_nothing_else(name, mlm_weight, tmp_path, wordpiece):
    torch.manual_seed(0)
    config = configs(wordpiece)[name]
    model = from_config(config, wordpiece, pooling="mean", max_seq_length=64, mlm_weight=mlm_weight)
    folder = saved(model, wordpiece, tmp_path / "release")
    with load_reports() as reports:
        base = AutoModel.from_pretrained(folder)
        SentenceTransformer(str(folder), device="cpu", trust_remote_code=name == "longformer")
    assert reports == []
    assert base.config.architectures == [type(base).__name__]
    assert_equal(model.body[0].model.state_dict(), base.state_dict())
    assert all((value == 0).all() for key, value in base.state_dict().items() if "pooler." in key)
    stored = [value for file in folder.glob("*.safetensors") for value in load_file(file).values()]
    parameters = [*(model.encoder if mlm_weight else base).parameters()]
    assert sum(value.nbytes for value in stored) == sum(value.nbytes for value in parameters)  # none twice

    with load_reports() as reports:  # a random head, which is said
        AutoModelForMaskedLM.from_pretrained(folder)
    assert any("MISSING" in text for text in reports)
    if not mlm_weight:
        assert not (folder / HEAD_INDEX).exists()
        return
    with load_reports() as reports:
        masked = AutoModelForMaskedLM.from_pretrained(folder, variant="mlm")
        again = from_pretrained(folder)
    told = [line for text in reports for line in text.splitlines() if "|" in line and "Key" not in line]
    assert all("pooler" in line and "UNEXPECTED" in line for line in told)  # which `AutoModel` looks for
    expected = {key: value for key, value in model.encoder.state_dict().items() if "pooler." not in key}
    assert_equal(expected, masked.state_dict())
    assert masked.get_output_embeddings().weight is masked.get_input_embeddings().weight
    assert_equal(model.state_dict(), again.state_dict())


@pytest.mark.parametrize("step", ["write_whole", "write_text"])
def test_a_kill_while_the_head_is_written_leaves_a_release_without_it(step, tiny_model, tmp_path, monkeypatch):
    """The encoder comes first, then its head, which is there as a whole or not at all."""

    def die(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(saving, step, die)
    with pytest.raises(KeyboardInterrupt):
        tiny_model.save_pretrained(tmp_path)
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    assert_equal(tiny_model.body[0].model.state_dict(), loaded[0].model.state_dict())
    assert type(from_pretrained(tmp_path).encoder) is BertModel


def test_a_head_that_was_not_trained_is_not_released_and_old_weights_do_not_stay(tmp_path, wordpiece):
    trained = from_config(tiny_config(wordpiece), wordpiece)
    contrastive_alone = from_config(tiny_config(wordpiece), wordpiece, mlm_weight=0.0)
    for model in (contrastive_alone, trained, contrastive_alone):  # one file, then several, then one
        folder = saved(model, wordpiece, tmp_path / "release")
        assert (folder / HEAD_FILE).exists() == (folder / HEAD_INDEX).exists() == (model is trained)
        assert [file.name for file in folder.glob("model*.safetensors")] == ["model.safetensors"]
        base = AutoModel.from_pretrained(folder).state_dict()
        for key, value in model.body[0].model.state_dict().items():
            assert torch.equal(base[key], value), key
    assert type(from_pretrained(folder).encoder) is BertModel


def test_other_weights_saved_over_a_release_are_continued_without_its_head(tmp_path, wordpiece, caplog):
    """As `SentenceTransformer.save` and `AutoModel.save_pretrained` do, which know nothing of the head."""
    save_checkpoint(wordpiece, tmp_path)
    assert from_pretrained(tmp_path).config.docsplit["mlm_weight"] > 0
    other = SentenceTransformer(str(tmp_path), device="cpu")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.save(str(tmp_path), create_model_card=False)
    model = from_pretrained(tmp_path, mlm_weight=0)
    assert_equal(model.body[0].model.embeddings.state_dict(), other[0].model.embeddings.state_dict())
    assert "has other weights than its masked-LM head belongs to" in caplog.text


@pytest.fixture(scope="module")
def start(wordpiece, tmp_path_factory):
    """The encoder that is adapted."""
    return save_checkpoint(wordpiece, tmp_path_factory.mktemp("start"), 32)


def load(start):
    model = from_pretrained(start)
    torch.manual_seed(1)
    model.add_lora(4)
    return model


@pytest.fixture(scope="module")
def trained(corpus, wordpiece, start, tmp_path_factory):
    output_dir, model = tmp_path_factory.mktemp("trained"), load(start)
    dataset = tokenize(corpus, wordpiece)[0].with_format("numpy")
    arguments = TrainingArguments(
        output_dir=str(output_dir), use_cpu=True, per_device_train_batch_size=10, max_steps=6, save_steps=3,
        learning_rate=1e-2, remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", report_to="none",
    )  # fmt: skip
    Trainer(model, arguments, DocSplitCollator(wordpiece, max_seq_length=32), dataset).train()
    return model, output_dir


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
        states = model.body[0].model(**batch).last_hidden_state
    checkpoint = output_dir / "checkpoint-6"
    plain = AutoModelForMaskedLM.from_pretrained(checkpoint).eval()
    again = from_pretrained(checkpoint)
    unadapted = AutoModelForMaskedLM.from_pretrained(start, variant="mlm").eval()
    adapted = PeftModel.from_pretrained(AutoModel.from_pretrained(start), checkpoint / ADAPTER_FOLDER).eval()
    with torch.no_grad():
        torch.testing.assert_close(plain(**batch).logits, logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(adapted(**batch).last_hidden_state, states, rtol=1e-5, atol=1e-5)
        assert (unadapted(**batch).logits - logits).abs().max() > 1e-2
    assert again.config.docsplit == model.config.docsplit
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
    untied = set(plain.state_dict()) - set(plain.all_tied_weights_keys)
    weights = set(load_file(checkpoint / "model.safetensors"))
    assert {key for key in weights if not key.startswith("adapter.")} - untied == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    }
    assert untied < weights


def test_merged_weights_can_be_loaded_as_the_best_ones_are(trained, start, tmp_path):
    """At the end of a training, Trainer loads the best checkpoint without asking for its adapter."""
    model, output_dir = trained
    other = load(start)
    other.load_state_dict(load_file(output_dir / "checkpoint-6" / "model.safetensors"), strict=False)
    batch = random_batch(longest=32)
    with torch.no_grad():
        torch.testing.assert_close(other.eval()(**batch).loss, model.eval()(**batch).loss, rtol=1e-4, atol=1e-5)
    other.save_pretrained(tmp_path)
    adapter = load_file(output_dir / "checkpoint-6" / ADAPTER_FOLDER / "adapter_model.safetensors")
    assert_equal(load_file(tmp_path / ADAPTER_FOLDER / "adapter_model.safetensors"), adapter)


def test_another_start_or_another_model_is_noticed(trained, start):
    _, output_dir = trained
    weights = load_file(output_dir / "checkpoint-3" / "model.safetensors")
    other = load(start)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.endswith("query.base_layer.weight"):
                parameter.add_(0.1)
    with pytest.raises(RuntimeError, match="did not start from these weights"):
        other.load_state_dict(dict(weights), strict=False)
    with pytest.raises(RuntimeError, match="does not fit"):
        load(start).load_state_dict({"nonsense": torch.zeros(2)}, strict=False)


def test_adapters_of_peft_are_refused_and_say_the_way_that_works(start, tmp_path):
    with pytest.raises(ValueError, match="add_lora"):
        from_pretrained(start).add_adapter(LoraConfig(target_modules=["query"]))
    for adapted in (lambda model: model, lambda model: model.encoder, lambda model: model.encoder.base_model):
        model = from_pretrained(start)
        get_peft_model(adapted(model), LoraConfig(target_modules=["query"]))  # changes the model in place
        with pytest.raises(ValueError, match=r"adapters that add_lora did not add: .*model\.add_lora"):
            model.train()(**random_batch(longest=20))
        with pytest.raises(ValueError, match="adapters that add_lora did not add"):
            model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_of_peft_around_the_model_trains_no_step(start, wordpiece, tmp_path):
    """`Trainer.save_model` of it would write an adapter that no loader finds a place for."""
    model = from_pretrained(start)
    documents, _ = tokenize(Dataset.from_list(make_corpus(8)), wordpiece)
    collator = DocSplitCollator.for_model(model, wordpiece)
    model = get_peft_model(model, LoraConfig(target_modules=["query", "value"]))
    args = TrainingArguments(str(tmp_path), use_cpu=True, max_steps=1, remove_unused_columns=False, report_to=[])
    with pytest.raises(ValueError, match=r"model\.add_lora"):
        Trainer(model, args, collator, documents.with_format("numpy")).train()


def test_other_ids_get_rows_in_encoder_and_head_and_are_kept(start, wordpiece, tmp_path):
    model, size = from_pretrained(start), len(wordpiece) + 8
    model.resize_token_embeddings(size)
    assert model.config.vocab_size == model.get_output_embeddings().out_features == size
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path)
    assert_equal(model.state_dict(), again.state_dict())
    batch = random_batch(longest=20)
    batch["input_ids"][0, 0, 1] = size - 1
    assert again(**batch).loss.isfinite()


def test_a_second_encoder_gets_the_same_rows_for_other_ids(start, wordpiece):
    settings = {"objective": "momentum_contrast", "momentum_queue_size": 8, "mlm_weight": 0.0, "momentum": 0.5}
    model, size = from_pretrained(start, **settings), len(wordpiece) + 8
    model.resize_token_embeddings(size)
    encoders = [model.body[0].model, model.objective.second_encoder[0].model]
    assert_equal(*(encoder.state_dict() for encoder in encoders))
    batch = random_batch(longest=20)
    batch["input_ids"][0, :, 1] = size - 1
    model.train()(**batch)  # whose keys are the negatives of the next
    model(**batch).loss.backward()
    assert encoders[0].get_input_embeddings().weight.grad[size - 1].any()


def test_a_graph_gets_rows_for_other_ids(wordpiece, tmp_path):
    config = GraphDocumentConfig(tiny_config(wordpiece), graph_hidden_size=16, passage_words=10)
    model, size = from_config(config, wordpiece, max_seq_length=24), len(wordpiece) + 8
    model.resize_token_embeddings(size)
    model.save_pretrained(tmp_path)
    assert_equal(model.state_dict(), from_pretrained(tmp_path).state_dict())
    assert model.config.vocab_size == len(model.get_input_embeddings().weight) == size


def test_what_does_not_go_together_raises(start):
    model = from_pretrained(start, objective="momentum_contrast", momentum_queue_size=8, mlm_weight=0.0)
    with pytest.raises(ValueError, match="LoRA does not go"):
        model.add_lora(2)
