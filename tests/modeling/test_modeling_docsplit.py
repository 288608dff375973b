"""The model: one loss whatever the micro-batches, each part against a slow obvious version, checkpoints that load."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ModernBertConfig,
    RobertaConfig,
    Trainer,
    TrainingArguments,
)

from docsplit.data import preparation
from docsplit.data.collators import IGNORED, DocSplitCollator
from docsplit.modeling.start import new_start, refuse_without_dropout
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import OF_IDS, tiny_config
from tests.modeling.objectives.test_info_nce import slow_info_nce

SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "pad_token_id": 0,
}
CONFIGS = {
    "bert": BertConfig(**SMALL),
    "roberta": RobertaConfig(**SMALL, max_position_embeddings=100),
    "modernbert": ModernBertConfig(**SMALL),
    "distilbert": DistilBertConfig(vocab_size=120, dim=32, n_layers=2, n_heads=2, hidden_dim=64),
}


def random_batch(documents=7, longest=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, longest + 1, (documents, 2, 1), generator=generator)
    attention_mask = (torch.arange(longest) < lengths).long()
    input_ids = torch.randint(5, 120, (documents, 2, longest), generator=generator) * attention_mask
    masked = (torch.rand(input_ids.shape, generator=generator) < 0.2) & (attention_mask == 1)
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "mlm_input_ids": input_ids.masked_fill(masked, 4),
        "mlm_targets": input_ids.masked_fill(~masked, IGNORED),
        "document_ids": torch.arange(documents),
    }


from_config = DocSplitForContrastivePretraining.from_config


def double_model(name="bert", pooling="mean", max_seq_length=64, with_dense=False, **settings):
    torch.manual_seed(0)
    config = BertConfig(**SMALL | {"num_hidden_layers": 1}) if name == "one layer" else CONFIGS[name]
    start = new_start(config, OF_IDS, pooling, max_seq_length)
    for layer in dense_layers() if with_dense else []:
        start.body.append(layer)
    return DocSplitForContrastivePretraining(start.body, start.masked_lm, **settings).double().eval()


def dense_layers():
    """Two layers that turn 32 numbers into 16 of unit length, as modules after the pooling."""
    return [Dense(32, 48, bias=False, activation_function=nn.Identity()), Dense(48, 16), Normalize()]


def loss_and_gradients(model, batch, forward=None):
    model.zero_grad()
    output = (forward or model)(**batch)
    output.loss.backward()
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    return output, gradients


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("symmetric", "mlm_weight"), [(False, 0.1), (True, 0.0)])
def test_micro_batches_change_neither_loss_nor_gradients(name, symmetric, mlm_weight):
    batch = random_batch()
    model = double_model(name, symmetric_loss=symmetric, mlm_weight=mlm_weight)
    plain, expected = loss_and_gradients(model, batch)
    assert any(gradient.abs().max() > 1e-6 for gradient in expected.values())  # else the rest shows nothing
    assert all(gradient.abs().max() > 0 for key, gradient in expected.items() if "query.weight" in key)
    for cache_gradients in (False, True):
        model.micro_batch_tokens, model.cache_gradients = 60, cache_gradients
        output, gradients = loss_and_gradients(model, batch)
        assert output.num_computed_tokens < plain.num_computed_tokens  # padding went away
        torch.testing.assert_close(output.loss, plain.loss, rtol=1e-12, atol=0)
        for key, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[key], rtol=1e-8, atol=1e-12)


def test_the_loss_equals_encoding_each_view_alone():
    batch = random_batch(documents=4)
    batch["document_ids"][3] = batch["document_ids"][0]  # the same document is no negative
    model = double_model()
    embeddings = torch.zeros(4, 2, 32, dtype=torch.float64)
    mlm_losses = []
    for document in range(4):
        for view in range(2):
            length = int(batch["attention_mask"][document, view].sum())
            ids = batch["input_ids"][document, view, :length][None]
            embeddings[document, view] = model.encoder.base_model(ids).last_hidden_state[0].mean(0)
            logits = model.encoder(batch["mlm_input_ids"][document, view, :length][None]).logits[0]
            targets = batch["mlm_targets"][document, view, :length]
            for position in (targets != IGNORED).nonzero().flatten().tolist():
                mlm_losses.append(-logits[position].log_softmax(-1)[targets[position]])
    same = torch.zeros(4, 4, dtype=torch.bool)
    same[0, 3] = same[3, 0] = True
    contrastive = slow_info_nce(embeddings[:, 0], embeddings[:, 1], 0.05, torch.arange(4), same) / 4
    output = model(**batch)
    assert output.num_masked_negatives == 2
    assert output.contrastive_loss.item() == pytest.approx(contrastive, rel=1e-9)
    assert output.mlm_loss.item() == pytest.approx((sum(mlm_losses) / len(mlm_losses)).item(), rel=1e-9)
    assert output.loss.item() == pytest.approx(contrastive + 0.1 * output.mlm_loss.item(), rel=1e-9)


def test_no_masked_token_gives_a_zero_mlm_loss_and_gradients():
    batch = random_batch()
    batch["mlm_targets"] = torch.full_like(batch["mlm_targets"], IGNORED)
    output, gradients = loss_and_gradients(double_model(), batch)
    assert output.mlm_loss == 0
    assert set(gradients) == {name for name, _ in double_model().named_parameters() if ".pooler." not in name}


def test_mlm_weight_zero_leaves_the_head_alone():
    model = double_model(mlm_weight=0.0)
    head = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert head
    assert all("cls" in name or "pooler" in name for name in head)
    batch = random_batch()
    without = {key: value for key, value in batch.items() if not key.startswith("mlm")}
    assert model(**without).mlm_loss is None


def test_contrastive_weight_zero_is_masked_lm_alone():
    batch = random_batch()
    with_both, _ = loss_and_gradients(double_model(mlm_weight=1.0), batch)
    model = double_model(contrastive_weight=0.0, mlm_weight=1.0)
    model.cache_gradients, model.micro_batch_tokens = True, 100
    output = model(**batch)
    assert output.embeddings is None
    assert output.contrastive_loss is None
    output.loss.backward()
    assert float(output.loss) == pytest.approx(float(with_both.mlm_loss), rel=1e-12)
    without_gradient = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without_gradient == []  # DDP would wait for them
    assert model(**batch, return_loss=False).embeddings.shape == (7, 2, 32)


def test_missing_mlm_inputs_and_data_parallel_are_refused():
    model = double_model()
    with pytest.raises(ValueError, match="mlm_weight"):
        model(**{key: value for key, value in random_batch().items() if not key.startswith("mlm")})
    model._is_replica = True  # what torch sets on the copies
    with pytest.raises(RuntimeError, match="split the negatives"):
        model(**random_batch())


def test_views_that_are_one_text_need_dropout():
    """Else their vectors are equal, and there is nothing to learn; ModernBERT has none by default."""
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    batch = {name: value for name, value in random_batch().items() if not name.startswith("mlm")}
    of_heads = {"qa_dropout": 0.5, "seq_classif_dropout": 0.5, "summary_last_dropout": 0.5, "pooler_dropout": 0.5}
    for config, name in (
        (BertConfig(**SMALL | drops | of_heads), "hidden_dropout_prob"),
        (ModernBertConfig(**SMALL), "embedding_dropout"),
    ):
        model = from_config(config, OF_IDS, max_seq_length=64, mlm_weight=0.0).train()
        message = rf"no dropout .*{name} 0\.0.*another view, such as docsplit.* --config_overrides \w+=0\.1"
        with pytest.raises(ValueError, match=message):
            model(**batch, same_text=True)
        assert model(**batch).loss > 0
        assert model.eval()(**batch, same_text=True).loss > 0
    model = from_config(BertConfig(**SMALL | drops | {"attention_probs_dropout_prob": 0.5}), OF_IDS, mlm_weight=0.0)
    assert model.train()(**batch, same_text=True).loss > 0
    packed_on_cuda = SimpleNamespace(body=model.body, packing=True, device=torch.device("cuda"))
    with pytest.raises(ValueError, match="packed sequences have none of attention weights"):
        refuse_without_dropout(packed_on_cuda)


# --- Checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_is_native_and_loads_back(name, tmp_path):
    """By this class, transformers' own, and as Trainer does when it resumes."""
    model = double_model(name, pooling="max", symmetric_loss=True).float()
    checkpoint = tmp_path / "checkpoint-1"
    model.save_pretrained(checkpoint)
    again = DocSplitForContrastivePretraining.from_pretrained(checkpoint).eval()
    assert again.config.docsplit == model.config.docsplit
    batch = random_batch()
    assert torch.equal(again(**batch).loss, model(**batch).loss)
    assert AutoModelForMaskedLM.from_pretrained(checkpoint).config.architectures == [type(model.encoder).__name__]
    other, weights = double_model(name).float(), load_file(checkpoint / "model.safetensors")
    assert not any(key.startswith("encoder.encoder") for key in weights)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(weights, strict=False)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert type(AutoModel.from_pretrained(checkpoint)).__name__.endswith("Model")


def with_names_of_the_hub(folder):
    """Rename weights as in bert-base-uncased on the Hub, which calls its normalisations gamma and beta."""
    weights = load_file(folder / "model.safetensors")
    new = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for name in [name for name in weights if name.endswith(tuple(new))]:
        weights[".".join([*name.split(".")[:-2], new[".".join(name.split(".")[-2:])]])] = weights.pop(name)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("rank", [0, 2])
def test_a_start_with_names_of_the_hub_can_be_resumed(tmp_path, rank, wordpiece):
    wide = from_config(tiny_config(wordpiece), wordpiece)
    wide.encoder.save_pretrained(tmp_path / "start")
    wordpiece.save_pretrained(tmp_path / "start")
    with_names_of_the_hub(tmp_path / "start")
    models = [DocSplitForContrastivePretraining.from_pretrained(tmp_path / "start") for _ in range(2)]
    for model in models:
        if rank:
            model.add_lora(rank)
    with torch.no_grad():
        for name, parameter in models[0].named_parameters():
            if "LayerNorm" not in name and "base_layer" not in name:
                parameter.add_(0.1)
    models[0].save_pretrained(tmp_path / "checkpoint-1")
    saved = load_file(tmp_path / "checkpoint-1" / "model.safetensors")
    assert not any("gamma" in name for name in saved)
    models[1].load_state_dict(saved, strict=False)  # as Trainer does
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(ours, theirs)
    AutoModelForMaskedLM.from_pretrained(tmp_path / "checkpoint-1")


def test_missing_or_unknown_weights_raise_even_when_not_strict(tmp_path):
    model = double_model().float()
    model.save_pretrained(tmp_path / "checkpoint-1")
    weights = load_file(tmp_path / "checkpoint-1" / "model.safetensors")
    some = next(key for key in weights if "query.weight" in key)
    with pytest.raises(RuntimeError, match=r"weights are missing.*query\.weight"):
        model.load_state_dict({key: value for key, value in weights.items() if key != some}, strict=False)
    with pytest.raises(RuntimeError, match=r"unknown \[.*bert.something"):
        model.load_state_dict(weights | {"bert.something": torch.zeros(1)}, strict=False)


# --- Stock Trainer -------------------------------------------------------------------------------------------------


def test_the_loss_is_divided_by_the_accumulation_steps(tmp_path, wordpiece, corpus):
    """SGD on four accumulated batches of 8 moves as the mean of the four gradients does, not as their sum."""
    dataset = preparation.tokenize(corpus, wordpiece)[0].with_format("numpy")
    config = tiny_config(wordpiece, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, max_steps=1, per_device_train_batch_size=8, gradient_accumulation_steps=4,
        optim="sgd", max_grad_norm=0.0, lr_scheduler_type="constant", weight_decay=0.0, learning_rate=0.1,
        save_strategy="no", remove_unused_columns=False, disable_tqdm=True, report_to=[],
    )  # fmt: skip
    models, batches = [], []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(from_config(config, wordpiece, max_seq_length=64))
    start, model = models
    trainer = Trainer(model, args, DocSplitCollator(wordpiece, max_seq_length=64), dataset)
    model.register_forward_pre_hook(lambda module, args, inputs: batches.append(inputs), with_kwargs=True)
    trainer.train()
    gradients = [loss_and_gradients(start, batch)[1] for batch in batches]
    assert len(gradients) == 4
    moved = 0.0
    for (name, before), after in zip(start.named_parameters(), model.parameters(), strict=True):
        if not before.requires_grad:  # the pooler
            continue
        expected = before - 0.1 * sum(gradient[name] for gradient in gradients) / 4
        torch.testing.assert_close(after, expected, atol=1e-5, rtol=1e-4)
        moved += (after - before).abs().sum().item()
    assert moved > 0.01


# --- Micro-batches over whole trainings, precisions and memory ---


def test_cached_gradients_replay_dropout_and_autocast():
    """Bitwise: the second forward pass draws the same dropout in the same precision."""
    batch = random_batch(documents=9)
    results = []
    for cache_gradients in (False, True):
        torch.manual_seed(0)
        model = from_config(BertConfig(**SMALL), OF_IDS, pooling="mean", max_seq_length=40).train()
        model.micro_batch_tokens, model.cache_gradients = 60, cache_gradients
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(left, right) for left, right in zip(*results, strict=True))
    model.eval()
    assert model(**batch).loss != results[0][0]  # dropout was on


def test_under_autocast_the_gradients_of_micro_batches_are_summed_in_full_precision():
    """Some 40 micro-batches: summed in bfloat16 they would be five times as far from the exact gradient."""
    batch = random_batch(documents=40)
    torch.manual_seed(0)
    model = from_config(BertConfig(**SMALL), OF_IDS, pooling="mean", max_seq_length=40).eval()
    gradients = []
    for micro_batch_tokens, bf16 in ((None, True), (60, True), (None, False)):
        model.micro_batch_tokens = micro_batch_tokens
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = model(**batch)
        output.loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    plain, ours, exact = gradients
    assert 0 < (plain - exact).norm() < 0.01 * exact.norm()
    assert (ours - exact).norm() < 3 * (plain - exact).norm()


@pytest.mark.slow
def test_a_compiled_encoder_has_the_same_loss_and_gradients():
    """Traced with dynamic shapes over micro-batches of many lengths; `aot_eager` leaves the code generator out."""
    batches = [random_batch(documents=5, longest=longest, seed=longest) for longest in (40, 25)]
    plain, compiled = double_model("one layer"), double_model("one layer")
    compiled.compile(backend="aot_eager")
    plain.micro_batch_tokens = compiled.micro_batch_tokens = 60
    for cache_gradients in (False, True):
        plain.cache_gradients = compiled.cache_gradients = cache_gradients
        for batch in batches:
            (expected, gradients), (ours, its_gradients) = (loss_and_gradients(m, batch) for m in (plain, compiled))
            torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-10, atol=0)
            for name, gradient in gradients.items():
                torch.testing.assert_close(its_gradients[name], gradient, rtol=1e-8, atol=1e-12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # it was compiled
