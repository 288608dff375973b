"""A checkpoint holds the encoder where each loader looks for it, and the training state beside it."""

import logging

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, BertModel

from docsplit.modeling import saving
from docsplit.modeling.saving import (
    TRAINING_STATE_FILE,
    load_training_state,
    refuse_not_finite,
    released_state,
    save_training_state,
    split_release,
)
from docsplit.modeling.settings import has_pooler
from docsplit.modeling.starts import HEAD_FILE, HEAD_INDEX
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import tiny_config
from tests.modeling.test_starts import assert_equal, configs, load_reports, saved

from_pretrained = DocSplitForContrastivePretraining.from_pretrained


def test_the_release_and_the_training_state_share_no_weight(wordpiece, tmp_path):
    settings = {"objective": "momentum_contrast", "momentum_queue_size": 8, "mlm_weight": 0.0}
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), **settings)
    state = model.state_dict()
    released = released_state(state)
    assert_equal(released, model.encoder.state_dict())
    save_training_state(state, tmp_path)
    kept = load_file(tmp_path / TRAINING_STATE_FILE)
    assert_equal(kept, model.objective.state_dict())
    assert len(released) + len(kept) == len(state)

    other = DocSplitForContrastivePretraining(tiny_config(wordpiece), **settings)
    assert any((value != kept[name]).any() for name, value in other.objective.state_dict().items())
    load_training_state(other, tmp_path)
    assert_equal(other.objective.state_dict(), kept)
    with pytest.raises(FileNotFoundError, match="the checkpoint of another objective"):
        load_training_state(other, tmp_path / "nowhere")


def test_without_training_state_there_is_no_file(tiny_model, tmp_path):
    save_training_state(tiny_model.state_dict(), tmp_path)
    assert not (tmp_path / TRAINING_STATE_FILE).exists()


def test_the_state_of_another_model_is_refused():
    with pytest.raises(ValueError, match=r"No key of this state_dict begins with 'encoder\.'"):
        released_state({"bert.pooler.weight": torch.zeros(1)})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_written(value, tiny_model, tmp_path):
    refuse_not_finite(tiny_model.state_dict(), None)
    with torch.no_grad():
        tiny_model.get_input_embeddings().weight[3, 3] = value
    with pytest.raises(FloatingPointError, match=r"word_embeddings\.weight for one: nothing is written"):
        tiny_model.save_pretrained(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


# --- A release -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "distilbert", "longformer"])
def test_a_release_has_what_each_loader_looks_for_and_nothing_else(name, tmp_path, wordpiece):
    torch.manual_seed(0)
    config = configs(wordpiece)[name]
    model = DocSplitForContrastivePretraining(config, pooling="mean", max_seq_length=64)
    folder = saved(model, wordpiece, tmp_path / "release")
    before = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    with load_reports() as reports:
        AutoModel.from_pretrained(folder)
    assert any("LOAD REPORT" in text for text in reports)  # so it would be seen below
    split_release(folder, model.start_pooler)
    with load_reports() as reports:
        base = AutoModel.from_pretrained(folder)
        SentenceTransformer(str(folder), device="cpu", trust_remote_code=name == "longformer")
    assert reports == []
    assert base.config.architectures == [type(base).__name__]
    expected = model.encoder.base_model.state_dict()
    assert_equal(expected, {key: value for key, value in base.state_dict().items() if "pooler." not in key})
    assert all((value == 0).all() for key, value in base.state_dict().items() if "pooler." in key)
    after = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert after < before + 4 * 32 * 33 + 4096  # a pooler and the names, and no weight twice

    with load_reports() as reports:
        masked = AutoModelForMaskedLM.from_pretrained(folder, variant="mlm")
    assert_equal(model.encoder.state_dict(), masked.state_dict())
    assert masked.get_output_embeddings().weight is masked.get_input_embeddings().weight
    # transformers reads whole files: a masked language model has no place for the pooler that `AutoModel` wants
    keys = [line.split("|")[0].strip() for text in reports for line in text.splitlines() if "| UNEXPECTED" in line]
    assert all("pooler." in key for key in keys)
    assert bool(reports) == has_pooler(config)
    assert not any("MISSING" in text for text in reports)

    with load_reports() as reports:
        again = from_pretrained(folder)
    assert reports == []
    assert_equal(model.state_dict(), again.state_dict())


@pytest.mark.parametrize("step", range(5))
def test_a_kill_while_a_release_is_split_leaves_a_folder_that_loads(step, tmp_path, wordpiece, monkeypatch):
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), pooling="mean")
    folder = saved(model, wordpiece, tmp_path / "release")
    calls = []

    def dying(write):
        def call(*args, **options):
            calls.append(args)
            if len(calls) > step:
                raise KeyboardInterrupt
            write(*args, **options)

        return call

    for name in ("write_whole", "write_text", "write_sentence_transformers_files"):
        monkeypatch.setattr(saving, name, dying(getattr(saving, name)))
    with pytest.raises(KeyboardInterrupt):
        split_release(folder, {})
    expected = model.encoder.base_model.state_dict()
    for loaded in (AutoModel.from_pretrained(folder), SentenceTransformer(str(folder), device="cpu")[0].model):
        assert_equal(expected, {key: value for key, value in loaded.state_dict().items() if "pooler." not in key})
    assert_equal(model.state_dict(), from_pretrained(folder).state_dict())


def test_a_head_that_was_not_trained_is_not_released_and_an_old_one_does_not_stay(tmp_path, wordpiece, caplog):
    caplog.set_level(logging.INFO)
    trained = DocSplitForContrastivePretraining(tiny_config(wordpiece))
    folder = saved(trained, wordpiece, tmp_path / "release")
    split_release(folder, {})
    assert (folder / HEAD_FILE).exists()
    assert "has no masked-LM head" not in caplog.text
    contrastive_alone = DocSplitForContrastivePretraining(tiny_config(wordpiece), mlm_weight=0.0)
    saved(contrastive_alone, wordpiece, folder)
    assert not (folder / HEAD_FILE).exists()
    split_release(folder, {})
    assert "has no masked-LM head" in caplog.text
    assert not (folder / HEAD_FILE).exists()
    assert not (folder / HEAD_INDEX).exists()
    assert not any(key.startswith("cls.") for key in load_file(folder / "model.safetensors"))
    assert type(from_pretrained(folder).encoder) is BertModel
