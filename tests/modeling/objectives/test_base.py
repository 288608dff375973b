"""What all objectives share: options, training state, checkpoints; and their table."""

from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from safetensors.torch import load_file
from torch import nn
from transformers import Trainer, TrainingArguments

from docsplit.data.collators import DocSplitCollator
from docsplit.data.preparation import tokenize
from docsplit.modeling.objectives.base import Objective, ObjectiveOutput
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.start import checked_settings
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config


class Predicted(Objective):
    """The second view's embedding, predicted from the first by a trained head (as BYOL's predictor does)."""

    @dataclass
    class Options:
        """Options of this objective."""

        head_width: int = field(default=8, metadata={"help": "Of the predictor."})

    def __init__(self, options, body):
        super().__init__(options, body)
        hidden = body.get_embedding_dimension()
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
    model = DocSplitForContrastivePretraining.from_config(
        config, tokenizer, pooling="mean", max_seq_length=32, **settings
    )
    arguments = TrainingArguments(
        output_dir=str(output_dir), use_cpu=True, per_device_train_batch_size=10, max_steps=4, save_steps=2,
        learning_rate=1e-2, remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", report_to="none",
    )  # fmt: skip
    dataset = tokenize(Dataset.from_list(make_corpus(40)), tokenizer)[0].with_format("numpy")
    collator = DocSplitCollator(tokenizer, "simcse", 32, mlm=bool(model.config.docsplit["mlm_weight"]))
    trainer = Trainer(model, arguments, collator, dataset)
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
    model = train(wordpiece, tmp_path / "whole", settings)
    whole = model.state_dict()
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    resumed = train(wordpiece, tmp_path / "resumed", settings, checkpoint).state_dict()
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name
    trained = {name: value for name, value in whole.items() if name.startswith("objective.")}
    written = load_file(checkpoint / "model.safetensors")
    assert {name.split(".")[0] for name in written} == {"bert", "cls", "objective"}
    assert {name for name in written if name.startswith("objective.")} == set(trained)
    assert any((value != written[name]).any() for name, value in trained.items())  # it learns

    # A release knows nothing of it, and does not pass for a checkpoint to resume from
    model.save_pretrained(tmp_path / "release")
    released = load_file(tmp_path / "release" / "model.safetensors")
    assert not any("objective" in name for name in released)
    with pytest.raises(RuntimeError, match="does not fit this model"):
        model.load_state_dict(released, strict=False)


def test_its_options_are_kept_and_those_of_others_refused(wordpiece, tmp_path):
    config = tiny_config(wordpiece)
    model = DocSplitForContrastivePretraining.from_config(
        config, wordpiece, max_seq_length=64, objective="predicted", head_width=5
    )
    assert model.objective.options == Predicted.Options(head_width=5)
    model.save_pretrained(tmp_path)
    again = DocSplitForContrastivePretraining.from_pretrained(tmp_path)
    assert again.objective.options == Predicted.Options(head_width=5)
    with pytest.raises(ValueError, match="symmetric_loss is an option of objective"):
        checked_settings(again.config, {"symmetric_loss": True})
    assert "head_width" not in checked_settings(again.config, {"objective": "info_nce"})
    ids = torch.randint(5, 60, (4, 2, 12))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mlm_input_ids": ids, "mlm_targets": ids}
    assert set(model(**batch).objective_parts) == {"head_norm"}


def test_weights_of_others_are_not_written_in_its_name(wordpiece, tmp_path):
    model = DocSplitForContrastivePretraining.from_config(tiny_config(wordpiece), wordpiece, max_seq_length=64)
    with pytest.raises(ValueError, match="state_dict"):
        model.save_pretrained(tmp_path, state_dict=model.encoder.state_dict())
    assert not any(tmp_path.iterdir())


CT = {"objective": "contrastive_tension", "mlm_weight": 0.0}
MOMENTUM = {"objective": "momentum_contrast", "momentum_queue_size": 20, "mlm_weight": 0.0}
BREGMAN = {"objective": "info_nce+bregman", "mlm_weight": 0.0}
NEIGHBOURS = {"objective": "neighbour_distillation", "mlm_weight": 0.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "guessing"}, "objective is 'guessing', expected one of"),
        ({"colour": "red"}, "There is no setting 'colour'"),
        ({"contrastive_weight": -1.0}, "contrastive_weight is -1.0"),
        ({"contrastive_weight": 0.0, "mlm_weight": 0.0}, "nothing is left to train"),
        ({"contrastive_temperature": 0.0}, "contrastive_temperature 0.0: give a number above 0"),
        ({"similarity": "euclidean"}, "similarity.*expected one of"),
        ({"momentum_queue_size": 8}, "an option of objective momentum_contrast, not of info_nce"),
        ({"objective": "contrastive_tension"}, "set mlm_weight=0"),
        (CT | {"contrastive_weight": 0.0}, "set mlm_weight=0 and contrastive_weight=1"),
        (MOMENTUM | {"symmetric_loss": True}, "symmetric_loss is an option of objective info_nce .*not of momentum"),
        (MOMENTUM | {"momentum_queue_size": 0}, "momentum_queue_size 0: give a number of at least 1"),
        (MOMENTUM | {"momentum": 1.5}, "momentum 1.5: give a number from 0 to 1"),
        (BREGMAN | {"bregman_weight": -1.0}, "bregman_weight -1.0: give"),
        (BREGMAN | {"bregman_temperature": 0.0}, "bregman_temperature 0.0: give a number above 0"),
        (BREGMAN | {"bregman_width": 0}, "bregman_width 0: give"),
        (BREGMAN | {"bregman_subnetworks": 1}, "all divergences are 0"),
        (BREGMAN | {"bregman_subnetworks": 1, "bregman_trunk": "shared", "bregman_width": 1}, "all divergences are 0"),
        (BREGMAN | {"bregman_trunk": "both"}, "expected one of"),
        (BREGMAN | {"contrastive_weight": 0.0, "mlm_weight": 0.1}, "objective='info_nce' for masked LM alone"),
        (NEIGHBOURS | {"num_neighbours": -1}, "num_neighbours -1"),
        (NEIGHBOURS | {"smoothing_share": 1.1}, "smoothing_share 1.1"),
        (NEIGHBOURS | {"neighbour_temperature": 0.0}, "neighbour_temperature 0.0"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings, message, wordpiece):
    with pytest.raises(ValueError, match=message):
        checked_settings(tiny_config(wordpiece), settings)
