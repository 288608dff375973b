"""The encoder that lies in the repository: it loads without a network, and its card is that of its files."""

import logging
import re
import shutil

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from docsplit.release.model_card import write_card
from tests.conftest import make_corpus
from tests.processes import ROOT

FOLDER = ROOT / "model_cards" / "docsplit_small"


def test_it_loads_as_readme_and_card_say(monkeypatch, caplog, recwarn):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for page in (ROOT / "README.md", FOLDER / "README.md"):
        snippets = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
        (snippet,) = [code for code in snippets if 'SentenceTransformer("model_cards/docsplit_small")' in code]
        exec(compile(snippet, page, "exec"), names := {})
        assert names["model"].encode("A text.").shape == (64,)
    assert names["similarities"].shape == (1, 2)
    AutoModel.from_pretrained(FOLDER)
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert not recwarn.list


def test_all_its_forms_agree():
    texts = [row["text"] for row in make_corpus(6)]
    vectors = SentenceTransformer(str(FOLDER), device="cpu").encode(texts)
    encoder, head = AutoModel.from_pretrained(FOLDER), AutoModelForMaskedLM.from_pretrained(FOLDER, variant="mlm")
    inputs = AutoTokenizer.from_pretrained(FOLDER)(
        texts, padding=True, truncation=True, max_length=128, return_tensors="pt"
    )
    mask = inputs["attention_mask"][..., None]
    for model in (encoder, head.base_model):
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        np.testing.assert_allclose(((states * mask).sum(1) / mask.sum(1)).numpy(), vectors, atol=1e-5)


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 5_000_000


def test_its_card_is_made_of_its_files(tmp_path):
    shutil.copytree(FOLDER, copy := tmp_path / FOLDER.name)
    assert write_card(copy, "model_cards/docsplit_small") == (FOLDER / "README.md").read_text()
