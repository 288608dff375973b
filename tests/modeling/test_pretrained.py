"""Whatever a folder holds, it is loaded or refused in one line: no code of it runs, and nothing asks."""

import builtins
import linecache
import re
import shutil
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel

import convert_to_longformer
import export_onnx
import run_docsplit_pretraining
from docsplit.data.tokenization import load_tokenizer
from docsplit.embedding.loading import load_encoder
from docsplit.modeling import pretrained
from docsplit.modeling.pretrained import CannotLoad, check_files, loading, read_config
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.hostile_folders import CASES, KINDS, Case, build, evil, folders, has_run

ROOT = Path(__file__).parents[2]


def embed(folder):
    load_encoder(folder, device="cpu").encode_document(["a ship"])


def start_training(folder):
    DocSplitForContrastivePretraining.from_pretrained(folder)
    load_tokenizer(folder)


@pytest.mark.parametrize("use", [embed, start_training])
@pytest.mark.filterwarnings("ignore")
def test_hostile_folders_load_or_are_refused_in_a_line(use, wordpiece, tmp_path, monkeypatch):
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("asked on the terminal"))
    wrong, refused = [], 0
    for case, folder in folders(wordpiece, tmp_path):
        outcome = "loads"
        try:
            use(str(folder))
        except ValueError as error:
            frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
            said = linecache.getline(frame.f_code.co_filename, line).lstrip()
            is_ours = Path(frame.f_code.co_filename).is_relative_to(ROOT) and said.startswith("raise ")
            is_line = is_ours and len(str(error)) < 1200 and "\n" not in str(error) and folder.name in str(error)
            outcome = "refused" if is_line else f"ends with {error!r}"
        except Exception as error:
            outcome = f"ends with {error!r}"
        refused += outcome == "refused"
        as_meant = outcome == "refused" or (outcome == "loads" and (case.loads or use is start_training))
        if has_run(folder) or not as_meant:
            wrong.append((case.kind, case.name, "was run" if has_run(folder) else outcome))
    assert not wrong
    assert len(CASES) > 150
    assert refused > 200  # a training does not use all files


@pytest.mark.parametrize("how", ["peft", "peft without a task", "sentence-transformers"])
def test_an_adapter_is_refused_with_the_command_that_merges_it(how, encoder, tmp_path, failure_of, monkeypatch):
    """Its weights are changes of an encoder that lies elsewhere: every use says so, and how to have both in one."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    task = None if how == "peft without a task" else "FEATURE_EXTRACTION"
    config = LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False, task_type=task)
    theirs = SentenceTransformer(str(encoder), device="cpu")
    if how == "sentence-transformers":
        theirs.add_adapter(config)
        theirs.save(str(tmp_path / "adapter"), create_model_card=False)
    else:
        # peft writes the place of the encoder alone, and the other files of the encoder are copied from there
        get_peft_model(theirs[0].model, config).save_pretrained(tmp_path / "adapter")
        for name in ("modules.json", "sentence_bert_config.json", "1_Pooling", "tokenizer.json"):
            copy = shutil.copytree if (encoder / name).is_dir() else shutil.copy
            copy(encoder / name, tmp_path / "adapter" / name)
    name = str(tmp_path / "adapter")
    said = set()
    for use in (embed, start_training):
        with pytest.raises(CannotLoad) as refusal:
            use(name)
        said.add(str(refusal.value))
    said.add(failure_of(run_docsplit_pretraining.main, "--model_name_or_path", name, "--output_dir", "trained"))
    said.add(failure_of(convert_to_longformer.main, name, "longformer"))
    said.add(failure_of(export_onnx.main, name, "onnx"))
    (line,) = said
    (command,) = re.findall(r"`python -c \"(.*)\"`", line)
    exec(command.replace("FOLDER", str(tmp_path / "merged")))
    for file in (tmp_path / "adapter").iterdir():
        if file.is_dir() or not file.name.startswith("adapter"):
            (shutil.copytree if file.is_dir() else shutil.copy)(file, tmp_path / "merged" / file.name)
    merged = load_encoder(str(tmp_path / "merged"), device="cpu")
    assert (
        np.abs(merged.encode("a ship") - SentenceTransformer(str(encoder), device="cpu").encode("a ship")).max() > 0.01
    )
    np.testing.assert_allclose(merged.encode("a ship"), theirs.encode("a ship"), atol=1e-5)


def test_the_canary_sings_where_code_is_run(wordpiece, tmp_path):
    """Otherwise the test above would pass whatever happens."""
    case = next(case for case in CASES if case.name == "its code was replaced" and case.kind == "graph")
    for _, folder in folders(wordpiece, tmp_path, [case]):
        AutoModel.from_pretrained(folder, trust_remote_code=True, force_download=True)
        exec((folder / "graph_document_transformer.py").read_text().splitlines()[0])
        assert has_run(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_sound_folders_pass_the_checks(kind, wordpiece, tmp_path):
    build(kind, tmp_path, wordpiece)
    check_files(tmp_path, {})
    embed(str(tmp_path))


def test_code_of_others_is_run_where_a_caller_trusts_it(wordpiece, tmp_path):
    case = Case("", "plain", lambda folder: (folder / "evil.py").write_text(
        evil(folder) + "from transformers import BertConfig\nclass EvilConfig(BertConfig):\n    model_type = 'evil'\n"
    ))  # fmt: skip
    for _, folder in folders(wordpiece, tmp_path, [case]):
        values = '{"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}'
        (folder / "config.json").write_text(values)
        with pytest.raises(CannotLoad, match="code of others is not run"):
            read_config(folder)
        assert not has_run(folder)
        assert read_config(folder, trust_remote_code=True).model_type == "evil"
        assert has_run(folder)


def test_errors_of_this_project_and_ctrl_c_stay_as_they_are():
    with pytest.raises(KeyboardInterrupt), loading("name"):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match=r"^choose another$"), loading("name", keeps=ValueError):
        raise ValueError("choose another")
    with pytest.raises(CannotLoad, match=r"name a model .* The cause: TypeError: 5 and 6$"), loading("name"):
        raise TypeError("5\nand 6")


def test_names_become_models_in_one_place():
    """Elsewhere `trust_remote_code` would be None, and transformers would ask on the terminal."""
    loads = re.compile(r"\bAuto\w+\.from_pretrained\(|SentenceTransformer\((?:str\(|\w+[,)]|\"|\w+\.)")
    files = [path for folder in ("docsplit", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    found = {
        path.name
        for path in [*files, *ROOT.glob("*.py")]
        for line in path.read_text(encoding="utf-8").splitlines()
        if loads.search(line) and not re.search(r"[\"`]|^Load ", line.partition("SentenceTransformer(")[0])
    }
    # The second is copied into checkpoints, and gets the argument; loading.py loads what it has just written
    assert found == {"pretrained.py", "graph_document_transformer.py", "loading.py"}
    assert AutoConfig is pretrained.AutoConfig
