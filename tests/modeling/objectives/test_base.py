"""What all objectives share: options, training state, checkpoints; and their table."""

from dataclasses import MISSING, dataclass, field, fields

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, Trainer, TrainingArguments

from docsplit.data.collators import DocSplitCollator
from docsplit.data.preparation import tokenize
from docsplit.modeling.objectives.base import Objective, ObjectiveOutput, SoftmaxOptions
from docsplit.modeling.objectives.table import OBJECTIVES, objectives_with, option_names
from docsplit.modeling.pretrained import checked_settings
from docsplit.modeling.saving import TRAINING_STATE_FILE
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config


class Predicted(Objective):
    """The second view's embedding, predicted from the first by a trained head (as BYOL's predictor does)."""

    @dataclass
    class Options:
        """Options of this objective."""

        head_width: int = field(default=8, metadata={"help": "Of the predictor."})

    def __init__(self, options, base_model):
        super().__init__(options, base_model)
        hidden = base_model.config.hidden_size
        self.head = nn.Sequential(nn.Linear(hidden, options.head_width), nn.BatchNorm1d(options.head_width), nn.ReLU())
        self.predict = nn.Linear(options.head_width, hidden)

    def forward(self, embeddings, document_ids, counts):
        predicted = self.predict(self.head(embeddings[:, 0].float()))
        loss = 1 - F.cosine_similarity(predicted, embeddings[:, 1].detach()).mean()
        return ObjectiveOutput(loss, embeddings.new_zeros((), dtype=torch.long), {"head_norm": predicted.norm()})


@pytest.fixture(autouse=True)
def _predicted(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "predicted", Predicted)


def train(tokenizer, output_dir, settings, checkpoint=None):
    torch.manual_seed(0)
    config = tiny_config(tokenizer, hidden_dropout_prob=0.1)
    model = DocSplitForContrastivePretraining(config, pooling="mean", max_seq_length=32, **settings)
    arguments = TrainingArguments(
        output_dir=str(output_dir), use_cpu=True, per_device_train_batch_size=10, max_steps=4, save_steps=2,
        learning_rate=1e-2, remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", report_to="none",
    )  # fmt: skip
    dataset = tokenize(Dataset.from_list(make_corpus(40)), tokenizer)[0].with_format("numpy")
    collator = DocSplitCollator(tokenizer, "simcse", 32, mlm=bool(model.config.docsplit["mlm_weight"]))
    trainer = Trainer(model, arguments, collator, dataset)
    if checkpoint is not None:
        model.load_training_state(checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "predicted"},
        {"objective": "contrastive_tension", "mlm_weight": 0.0},
        {"objective": "momentum_contrast", "mlm_weight": 0.0, "momentum_queue_size": 25, "momentum": 0.9},
    ],
    ids=lambda settings: settings["objective"],
)
def test_a_resumed_training_is_the_uninterrupted_one_and_the_release_the_encoder_alone(settings, wordpiece, tmp_path):
    whole = train(wordpiece, tmp_path / "whole", settings).state_dict()
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    resumed = train(wordpiece, tmp_path / "resumed", settings, checkpoint).state_dict()
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name
    trained = {name: value for name, value in whole.items() if name.startswith("objective.")}
    written = load_file(checkpoint / TRAINING_STATE_FILE)
    assert {f"objective.{name}" for name in written} == set(trained)
    assert any((trained[f"objective.{name}"] != value).any() for name, value in written.items())  # it learns

    # What others load knows nothing of it.
    assert {name.split(".")[0] for name in load_file(checkpoint / "model.safetensors")} == {"bert", "cls"}
    encoder, info = AutoModel.from_pretrained(checkpoint, add_pooling_layer=False, output_loading_info=True)
    assert not info["missing_keys"]
    assert {name.split(".")[0] for name in encoder.state_dict()} == {"embeddings", "encoder"}


def test_its_options_are_kept_and_those_of_others_refused(wordpiece, tmp_path):
    config = tiny_config(wordpiece)
    model = DocSplitForContrastivePretraining(config, max_seq_length=64, objective="predicted", head_width=5)
    assert model.objective.options == Predicted.Options(head_width=5)
    model.save_pretrained(tmp_path)
    again = DocSplitForContrastivePretraining.from_pretrained(tmp_path)
    assert again.objective.options == Predicted.Options(head_width=5)
    with pytest.raises(ValueError, match="symmetric_loss is an option of objective"):
        checked_settings(again.config, {"symmetric_loss": True})
    assert "head_width" not in checked_settings(again.config, {"objective": "info_nce"})


def test_the_training_state_follows_what_is_loaded(wordpiece):
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), max_seq_length=64, objective="predicted")
    whole = model.state_dict()
    encoder = {name: value for name, value in whole.items() if name.startswith("encoder.")}
    assert model.training_state == "fresh"
    model.load_state_dict(encoder, strict=False)
    assert model.training_state == "missing"
    model.load_state_dict(whole)
    assert model.training_state == "fresh"
    model.training_state = "loaded"
    model.load_state_dict(whole)
    model.load_state_dict(encoder, strict=False)
    assert model.training_state == "missing"  # the state belongs to the whole that was loaded before


def test_who_chooses_the_encoders_goes_without_masked_lm(wordpiece, monkeypatch):
    class OneView(Predicted):
        def encode(self, encode, base_model):
            return torch.stack([encode(base_model, view=0)] * 2, dim=1)

    monkeypatch.setitem(OBJECTIVES, "one_view", OneView)
    with pytest.raises(ValueError, match="set mlm_weight=0"):
        DocSplitForContrastivePretraining(tiny_config(wordpiece), max_seq_length=64, objective="one_view")


def test_its_parts_are_in_the_output(wordpiece):
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), max_seq_length=64, objective="predicted")
    ids = torch.randint(5, 60, (4, 2, 12))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mlm_input_ids": ids, "mlm_targets": ids}
    assert set(model(**batch).objective_parts) == {"head_norm"}


def test_a_state_without_an_encoder_is_not_released(wordpiece, tmp_path):
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), max_seq_length=64)
    with pytest.raises(ValueError, match=r"begins with 'encoder.'"):
        model.save_pretrained(tmp_path, state_dict=model.encoder.state_dict())
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"contrastive_temperature": 0.0}, "expected more than 0"), ({"similarity": "l2"}, "expected one of")],
)
def test_options_of_a_softmax_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxOptions(**options)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_option_has_a_default_and_a_help_text(name):
    assert issubclass(OBJECTIVES[name], Objective)
    OBJECTIVES[name].Options()  # the defaults go together
    for option in fields(OBJECTIVES[name].Options):
        assert option.default is not MISSING
        assert option.metadata["help"]


def test_options_are_found_by_their_objective_and_objectives_by_their_options():
    for name in OBJECTIVES:
        assert all(name in objectives_with(option) for option in option_names(name))
    assert objectives_with("momentum_queue_size") == ["momentum_contrast"]
    assert set(objectives_with("symmetric_loss")) == {"info_nce", "info_nce+bregman"}
    assert objectives_with("learning_rate") == []
