"""The settings in a checkpoint: defaults, older ones, overrides, and what an encoder can take."""

import pytest
from docsplit.modeling.settings import freeze_unused_parameters
from transformers import BertConfig, BertForMaskedLM, DistilBertConfig

from docsplit.modeling.pretrained import (
    DEFAULT_SETTINGS,
    checked_settings,
    current_settings,
    default_settings,
    has_pooler,
    max_positions,
    setting_names,
    settings_for,
)
from docsplit.modeling.vectors import KEPT, normalizes
from modeling_graph_document import GraphDocumentConfig

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 20}
MODEL = {"prompts": {}, "similarity_fn_name": "cosine"}


def config_with(**settings):
    config = BertConfig(**SMALL, max_position_embeddings=100)
    config.docsplit = settings
    return config


def test_overrides_come_before_the_checkpoint_and_that_before_the_defaults():
    settings = checked_settings(config_with(pooling="max", mlm_weight=0.5, max_seq_length=64), {"mlm_weight": 0.2})
    assert (settings["pooling"], settings["mlm_weight"], settings["max_seq_length"]) == ("max", 0.2, 64)
    assert settings["contrastive_weight"] == DEFAULT_SETTINGS["contrastive_weight"]
    assert settings["objective"] == "info_nce"
    assert "contrastive_temperature" in settings  # an option of the objective


def test_the_default_length_is_what_the_encoder_has_positions_for():
    assert checked_settings(config_with(), {})["max_seq_length"] == 100
    for saved, given in (({}, {"max_seq_length": 101}), ({"max_seq_length": 101}, {})):
        with pytest.raises(ValueError, match="positions for 100 tokens: set max_seq_length=100 or less"):
            checked_settings(config_with(**saved), given)
    unlimited = BertConfig(**SMALL, max_position_embeddings=-1)
    assert max_positions(unlimited) is None
    assert checked_settings(unlimited, {})["max_seq_length"] == 512


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objective": "guessing"}, "objective is 'guessing', expected one of"),
        ({"momentum_queue_size": 8}, "an option of objective momentum_contrast, not of info_nce"),
        ({"colour": "red"}, "There is no setting 'colour'"),
        ({"pooling": "last"}, "pooling is 'last'"),
        ({"contrastive_weight": -1.0}, "contrastive_weight is -1.0"),
        ({"contrastive_weight": 0.0, "mlm_weight": 0.0}, "nothing is left to train"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        checked_settings(config_with(), given)


def test_another_objective_drops_the_options_of_the_one_before():
    saved = {"objective": "momentum_contrast", "momentum_queue_size": 8, "mlm_weight": 0.0, "pooling": "mean"}
    assert settings_for("info_nce", saved) == {"objective": "info_nce", "mlm_weight": 0.0, "pooling": "mean"}
    settings = checked_settings(config_with(**saved), {"objective": "info_nce"})
    assert settings["objective"] == "info_nce"
    assert "momentum_queue_size" not in settings
    assert set(settings) <= setting_names()


def test_settings_of_older_checkpoints_are_read():
    older = {"pooling": "mean", "momentum_queue_size": 8, "symmetric": False, "bregman_subnetworks": 0}
    settings = current_settings(older)
    assert settings["objective"] == "momentum_contrast"
    assert settings["momentum_queue_size"] == 8
    assert "bregman_subnetworks" not in settings
    assert current_settings({"symmetric": True})["symmetric_loss"] is True
    assert older == {"pooling": "mean", "momentum_queue_size": 8, "symmetric": False, "bregman_subnetworks": 0}
    assert current_settings({}) == {"objective": "info_nce"}  # nothing is known of an encoder of others


def test_a_similarity_that_is_given_is_the_sentence_transformers_too():
    kept = {"normalize": True, "model": MODEL}
    config = config_with(**{KEPT: kept})
    assert normalizes(config.docsplit)
    settings = checked_settings(config, {"similarity": "dot"})
    assert settings[KEPT]["model"]["similarity_fn_name"] == settings["similarity"] == "dot"
    assert kept["model"] is MODEL
    assert MODEL["similarity_fn_name"] == "cosine"  # the start's own stay


def test_a_family_has_defaults_of_its_own():
    graph = GraphDocumentConfig(BertConfig(**SMALL))
    assert default_settings(BertConfig()) == DEFAULT_SETTINGS
    assert default_settings(graph) == DEFAULT_SETTINGS | {"mlm_weight": 0.0, "max_seq_length": 256}


def test_what_gets_no_gradient_is_frozen():
    assert has_pooler(BertConfig())
    assert not has_pooler(DistilBertConfig())
    for mlm in (False, True):
        encoder = BertForMaskedLM(BertConfig(**SMALL))
        freeze_unused_parameters(encoder, mlm)
        frozen = {name for name, parameter in encoder.named_parameters() if not parameter.requires_grad}
        in_head = {name for name, _ in encoder.named_parameters() if name.startswith("cls.")}
        assert frozen == (set() if mlm else in_head)
        assert in_head
