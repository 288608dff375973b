"""`--plugin`: the examples add rows that every script takes, and what they made is not gone on with without them."""

import json
import runpy

import pytest
import torch
from transformers import AutoModel, XmodConfig
from xxhash import xxh3_128_hexdigest

import run_docsplit_pretraining
import run_probe_classification
from docsplit.data.views import VIEWS
from docsplit.evaluation.heads.table import HEADS
from docsplit.modeling.families.table import FAMILIES
from docsplit.modeling.loading import load_encoder
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.runtime import plugins
from docsplit.runtime.plugins import load_plugin
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import tiny_values, weights_of
from tests.processes import ROOT

EXAMPLES = ROOT / "examples"
TABLES = (VIEWS, OBJECTIVES, FAMILIES, HEADS)
TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64,max_position_embeddings=64"


@pytest.fixture
def forget():
    """Takes all plug-ins out again, as if the process were new; called after each test too."""
    before = [dict(table) for table in TABLES]

    def run():
        for table, rows in zip(TABLES, before):
            table.clear()
            table.update(rows)
            table.origins.clear()
            table.made = dict(rows)
        plugins._loaded.clear()

    yield run
    run()


@pytest.fixture
def train(run_here, corpus_file, tmp_path, monkeypatch):
    def run(output, *options):
        recipe = options[:1] if options and str(options[0]).endswith(".yaml") else ()
        run_here(
            run_docsplit_pretraining.main, *recipe, "--corpus", corpus_file, "--output_dir", tmp_path / output,
            "--max_steps", 2, "--vocab_size", 300, "--max_seq_length", 48, "--per_device_train_batch_size", 4,
            "--use_cpu", "--disable_tqdm", *options[len(recipe) :],
        )  # fmt: skip
        return tmp_path / output

    monkeypatch.chdir(tmp_path)
    return run


def test_views_and_objectives_of_a_plugin_train_and_are_asked_for_by_those_who_go_on(train, tmp_path, forget):
    mine = tmp_path / "mine.py"
    mine.write_text("".join((EXAMPLES / f"custom_{kind}.py").read_text() for kind in ("view", "objective")))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"plugin: {mine}\nobjective: projected_info_nce\nprojection_width: 16\nmlm_weight: 0.1\n")
    made = train("made", recipe, "--config_overrides", TINY, "--view", "every_other_sentence")
    settings = json.loads((made / "config.json").read_text())["docsplit"]
    origin = f"mine.py (XXH3 {xxh3_128_hexdigest(mine.read_bytes())})"
    assert settings["plugins"] == {"view": origin, "objective": origin}
    state = DocSplitForContrastivePretraining.from_pretrained(made).objective.state_dict()
    assert state["project.2.weight"].shape == (16, 32)

    # An encoder is an encoder without its plug-in; training it further is not
    forget()
    _, report = AutoModel.from_pretrained(made, output_loading_info=True, add_pooling_layer=False)
    assert not report["missing_keys"]
    assert load_encoder(str(made), device="cpu").get_embedding_dimension() == 32
    with pytest.raises(ValueError, match=r"objective 'projected_info_nce' comes from the plug-in mine\.py"):
        train("further", "--model_name_or_path", made)
    assert "projected_info_nce" not in OBJECTIVES

    # With it, and with a view of this package: the plug-in of the view is no longer named
    further = train("further", "--model_name_or_path", made, "--plugin", mine, "--view", "half")
    changed = DocSplitForContrastivePretraining.from_pretrained(further).objective.state_dict()
    assert all((changed[name] != value).any() for name, value in state.items())
    assert json.loads((further / "config.json").read_text())["docsplit"]["plugins"] == {"objective": origin}
    assert any((weights_of(made)[name] != value).any() for name, value in weights_of(further).items())


def test_a_family_of_a_plugin_is_needed_to_embed(wordpiece, tmp_path, forget, caplog):
    load_plugin(EXAMPLES / "custom_family.py")
    torch.manual_seed(0)
    config = XmodConfig(**tiny_values(wordpiece), languages=["de_DE", "en_XX"])
    model = DocSplitForContrastivePretraining.from_config(config, wordpiece, max_seq_length=64)
    model.save_pretrained(tmp_path / "xmod")
    encoder = load_encoder(str(tmp_path / "xmod"), device="cpu")
    assert torch.isfinite(torch.from_numpy(encoder.encode("A ship."))).all()
    changed = tmp_path / "custom_family.py"
    changed.write_text((EXAMPLES / "custom_family.py").read_text().replace("en_XX", "de_DE"))
    forget()
    load_plugin(changed)
    load_encoder(str(tmp_path / "xmod"), device="cpu")
    assert caplog.text.count("family 'xmod' was made with the plug-in custom_family.py (XXH3 ") == 1
    forget()
    with pytest.raises(ValueError, match=r"family 'xmod' comes from the plug-in custom_family\.py"):
        load_encoder(str(tmp_path / "xmod"), device="cpu")


def test_a_head_of_a_plugin_is_measured_beside_others(run_here, corpus_file, encoder, tmp_path, monkeypatch, forget):
    monkeypatch.chdir(tmp_path)
    head = EXAMPLES / "custom_head.py"
    options = ("--train_file", corpus_file, "--num_draws", 2, "--output_dir", "probe", "--heads", "nearest_mean")
    run_here(run_probe_classification.main, "--model_name_or_path", encoder, *options, "--plugin", head)
    rows = json.loads((tmp_path / "probe" / "results.json").read_text())["rows"]
    assert {row["head"] for row in rows} == {"nearest_mean"}
    assert all(1 / 3 < row["accuracy_mean"] <= 1 for row in rows)


def test_the_evaluation_has_rows_tests_and_a_table(tmp_path, monkeypatch):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    report = runpy.run_path(str(EXAMPLES / "custom_evaluation.py"), run_name="__main__")["report"]
    assert report.rows["encoder"].tolist() == ["word", "char"]
    assert report.comparisons[["a", "b", "measure"]].values.tolist() == [["word", "char", "ndcg"]]
    assert "nDCG@10" in (tmp_path / "outputs" / "ranking" / "results.md").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such Python file"),
        ("from docsplit.data.views import VIEWS\nVIEWS['mine'] = VIEWS.pop('half')\n1 / 0", "ZeroDivisionError"),
        ("import nothing", "nothing"),
    ],
)
def test_a_plugin_that_cannot_be_run_is_one_line(text, message, tmp_path, forget):
    file = tmp_path / "broken.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_plugin(file)
    assert "half" in VIEWS
    assert "mine" not in VIEWS
    file.write_text("from docsplit.data.views import VIEWS\nVIEWS.update(mine=VIEWS['half'], half=VIEWS['ict'])")
    load_plugin(file)  # mended; a row that takes the place of one of this package is the plug-in's too
    assert VIEWS.origins.keys() == {"mine", "half"}
