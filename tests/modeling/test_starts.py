"""Any encoder to start from: its head or none, its dtype, and a release in which every loader finds what it wants."""

import contextlib
import json
import logging

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForPreTraining,
    BertModel,
    DistilBertConfig,
    LongformerConfig,
    ModernBertConfig,
    RobertaConfig,
    T5Config,
    T5Model,
)

from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import tiny_config, tiny_values

from_pretrained = DocSplitForContrastivePretraining.from_pretrained
GRAPH = {"model_type": "graph_document"}


@contextlib.contextmanager
def load_reports():
    """Collect the reports on weights that transformers logs while it loads."""
    reports, logs = [], logging.getLogger("transformers.modeling_utils")
    handler = logging.Handler()
    handler.emit = lambda record: reports.append(record.getMessage())
    logs.addHandler(handler)
    level = logs.level
    logs.setLevel(logging.WARNING)  # whatever a test before has made of it
    try:
        yield reports
    finally:
        logs.removeHandler(handler)
        logs.setLevel(level)


def configs(tokenizer):
    values = tiny_values(tokenizer)
    return {
        "bert": tiny_config(tokenizer),
        "roberta": RobertaConfig(**values),
        "modernbert": ModernBertConfig(**values),
        "distilbert": DistilBertConfig(vocab_size=len(tokenizer), dim=32, n_layers=2, n_heads=2, hidden_dim=64),
        "longformer": LongformerConfig(**values, attention_window=[16, 16]),
    }


def saved(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def test_the_pooler_is_the_start_s_where_it_has_one(tmp_path, wordpiece):
    torch.manual_seed(0)
    start = BertForPreTraining(tiny_config(wordpiece))
    start.save_pretrained(tmp_path / "start")
    model = from_pretrained(tmp_path / "start")
    assert model.config.docsplit["mlm_weight"] == 0.1  # its head is there
    assert_equal(model.encoder.cls.predictions.state_dict(), start.cls.predictions.state_dict())
    folder = saved(model, wordpiece, tmp_path / "release")
    assert_equal(AutoModel.from_pretrained(folder).pooler.state_dict(), start.bert.pooler.state_dict())


def test_a_start_without_a_head_is_trained_without_one(headless, wordpiece, caplog, tmp_path):
    caplog.set_level("INFO")
    with load_reports() as reports:
        model = from_pretrained(headless, pooling="mean")
    assert reports == []
    assert type(model.encoder) is BertModel
    assert model.config.docsplit["mlm_weight"] == 0
    (record,) = [record for record in caplog.records if "no masked-LM head" in record.message]
    assert record.levelname == "INFO"
    batch = wordpiece(["bread and butter", "a ship"] * 2, padding=True, return_tensors="pt")
    views = {key: batch[key].view(2, 2, -1) for key in ("input_ids", "attention_mask")}
    model(**views).loss.backward()
    assert all((parameter.grad is None) == ("pooler." in name) for name, parameter in model.named_parameters())

    caplog.clear()
    from_pretrained(headless, mlm_weight=0.3)
    (record,) = [record for record in caplog.records if "no masked-LM head" in record.message]
    assert record.levelname == "WARNING"
    assert "0 in place of 0.3" in record.message
    assert "--new_mlm_head" in record.message
    with pytest.raises(ValueError, match=r"nothing is left to train.*--new_mlm_head"):
        from_pretrained(headless, contrastive_weight=0.0)

    # what it writes is what it read: names, class and pooler
    folder = saved(model, wordpiece, tmp_path / "checkpoint")
    assert_equal(load_file(headless / "model.safetensors"), load_file(folder / "model.safetensors"))
    with load_reports() as reports:
        AutoModel.from_pretrained(folder)
        SentenceTransformer(str(folder), device="cpu")
    assert reports == []
    caplog.clear()
    from_pretrained(folder)
    assert "no masked-LM head" not in caplog.text  # its settings say 0


def test_trainer_resumes_an_encoder_without_a_head(headless, wordpiece, tmp_path):
    """Its own names begin with `encoder.`, as ours do."""
    model = from_pretrained(headless)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    folder = saved(model, wordpiece, tmp_path / "checkpoint")
    other = from_pretrained(headless)
    other.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert_equal(model.state_dict(), other.state_dict())


def test_a_new_head_is_made_where_it_is_asked_for(headless, wordpiece, tmp_path):
    model = from_pretrained(headless, new_mlm_head=True)
    assert model.config.docsplit["mlm_weight"] == 0.1
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(parameter.requires_grad for parameter in model.encoder.cls.parameters())
    folder = saved(model, wordpiece, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="has a masked-LM head: leave out --new_mlm_head"):
        from_pretrained(folder, new_mlm_head=True)
    with pytest.raises(ValueError, match="mlm_weight 0 never trains"):
        from_pretrained(headless, new_mlm_head=True, mlm_weight=0.0)


def test_what_cannot_be_trained_is_refused(tmp_path, headless, wordpiece):
    with pytest.raises(ValueError, match=r"'no/model' cannot be loaded as an encoder"):
        from_pretrained("no/model")
    with pytest.raises(ValueError, match="There is no no/such/model: name a folder with an encoder"):
        from_pretrained("no/such/model")
    values = {"vocab_size": 50, "d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 1, "d_kv": 16}
    T5Model(T5Config(**values)).save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match="a t5, an encoder with a decoder"):
        from_pretrained(tmp_path / "t5")
    config = json.loads((headless / "config.json").read_text()) | {"num_hidden_layers": 3}
    (headless / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"lacks \d+ weights of its own architecture, such as \['bert.encoder.layer.2"
    ):
        from_pretrained(headless)


@pytest.mark.parametrize("has_head", [True, False])
def test_training_is_in_float32_and_the_release_in_the_dtype_of_the_start(has_head, tmp_path, wordpiece):
    kind = AutoModelForMaskedLM if has_head else AutoModel
    kind.from_config(tiny_config(wordpiece)).to(torch.bfloat16).save_pretrained(tmp_path / "start")
    wordpiece.save_pretrained(tmp_path / "start")
    model = from_pretrained(tmp_path / "start")
    assert model.dtype == torch.float32
    with torch.no_grad():
        model.get_input_embeddings().weight[5, 5] = 1 + 2**-20  # no bfloat16
    folder = saved(model, wordpiece, tmp_path / "release")
    assert AutoModel.from_pretrained(folder).dtype == torch.bfloat16
    assert SentenceTransformer(str(folder), device="cpu").dtype == torch.bfloat16
    again = from_pretrained(folder)  # nothing is rounded on the way
    assert_equal(model.state_dict(), again.state_dict())
    folder = saved(again, AutoTokenizer.from_pretrained(folder), tmp_path / "further")
    assert AutoModel.from_pretrained(folder).dtype == torch.bfloat16


# --- Graph document models -----------------------------------------------------------------------------------------


def test_a_start_is_the_passage_encoder_of_a_graph(headless, tmp_path, wordpiece, caplog):
    """Its weights and nothing else of it, be it a checkpoint of this project; then the graph is a start itself."""
    first = from_pretrained(headless, pooling="mean", similarity="dot")
    for folder in (headless, saved(first, wordpiece, tmp_path / "ours")):
        with caplog.at_level(logging.INFO):
            model = from_pretrained(
                folder, **GRAPH, config_overrides={"graph_hidden_size": 16, "graph_kind": "section"}
            )
        assert "A graph_document has no masked-LM head: mlm_weight is 0" in caplog.text
        assert "new_mlm_head" not in caplog.text
        settings = model.config.docsplit
        assert (settings["pooling"], settings["similarity"], settings["mlm_weight"]) == ("cls", "cosine", 0)
        assert settings["max_seq_length"] == 128  # 256, had it so many positions
        expected = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        assert_equal(model.encoder.passage_encoder.state_dict(), expected.state_dict())
        model = from_pretrained(saved(model, wordpiece, tmp_path / "graph"))
        assert_equal(model.encoder.passage_encoder.state_dict(), expected.state_dict())
        assert str(tmp_path) not in (tmp_path / "graph" / "config.json").read_text()
        assert "docsplit" not in json.loads((tmp_path / "graph" / "config.json").read_text())["passage_encoder"]
    overrides = {"graph_kind": "full", "graph_attention_dropout": 0.2}
    other = from_pretrained(tmp_path / "graph", **GRAPH, config_overrides=overrides)
    assert_equal(other.state_dict(), model.state_dict())
    assert (other.encoder.config.graph_kind, model.encoder.config.graph_kind) == ("full", "section")
    assert other.encoder.layers[0].attention_dropout.p == 0.2
    with pytest.raises(ValueError, match="was made with graph_heads 2, and has weights for that"):
        from_pretrained(tmp_path / "graph", **GRAPH, config_overrides={"graph_heads": 4})
    with pytest.raises(ValueError, match="no masked-LM head for a graph_document"):
        from_pretrained(headless, **GRAPH, new_mlm_head=True)
    with pytest.raises(ValueError, match="nothing is left to train"):
        from_pretrained(tmp_path / "graph", contrastive_weight=0.0)


def test_broken_weights_are_named(headless):
    (headless / "model.safetensors").write_bytes((headless / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"headless' cannot be loaded as an encoder. The cause: .*header"):
        from_pretrained(headless)
    with pytest.raises(ValueError, match=r"headless' cannot be loaded as an encoder. The cause: .*fast"):
        from_pretrained(headless, attn_implementation="fast")
