"""A checkpoint of this project, as the tools find it that people already have: nothing of ours in between."""

import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskClassification
from mteb.abstasks.task_metadata import TaskMetadata
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from transformers import AutoModel, AutoTokenizer

from docsplit.embedding.encode import encode
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import TOPICS, make_corpus, tiny_config


@pytest.fixture(params=["mean", "cls"])
def checkpoint(request, tmp_path, wordpiece):
    torch.manual_seed(0)
    settings = {"pooling": request.param, "max_seq_length": 48}
    folder = tmp_path / "checkpoint"
    DocSplitForContrastivePretraining(tiny_config(wordpiece), **settings).save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    return folder


def ours(folder, texts):
    return encode(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), texts)


class Topics(AbsTaskClassification):
    """The tests' own documents, without a download."""

    metadata = TaskMetadata(
        name="Topics",
        description="Nonsense about a kitchen, a harbour or an orchard.",
        dataset={"path": "none/none", "revision": "1"},
        type="Classification",
        eval_langs=["eng-Latn"],
        main_score="accuracy",
    )

    def load_data(self, *args, **kwargs):
        def part(size, seed):
            rows = make_corpus(size, seed)
            return Dataset.from_list([{"text": r["text"], "label": list(TOPICS).index(r["label"])} for r in rows])

        self.dataset = DatasetDict(train=part(90, 5), test=part(30, 6))
        self.data_loaded = True


def test_mteb_runs_a_checkpoint_with_its_own_pooling(checkpoint, monkeypatch):
    seen = {}
    original = SentenceTransformer.encode

    def recording(self, sentences, *args, **kwargs):
        embeddings = original(self, sentences, *args, **kwargs)
        seen.update(zip(sentences, np.asarray(embeddings)))
        return embeddings

    monkeypatch.setattr(SentenceTransformer, "encode", recording)
    result = mteb.evaluate(SentenceTransformer(str(checkpoint)), Topics(), cache=None, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    assert 0.2 < scores["accuracy"] <= 1
    assert len(seen) > 30
    np.testing.assert_allclose(np.stack(list(seen.values())), ours(checkpoint, list(seen)), atol=1e-5)


def test_sentence_transformers_trains_a_checkpoint_further(checkpoint, tmp_path):
    rows = make_corpus(24)
    pairs = Dataset.from_list([{"anchor": a["text"], "positive": b["text"]} for a, b in zip(rows, rows[3:])])
    model = SentenceTransformer(str(checkpoint))
    arguments = SentenceTransformerTrainingArguments(
        output_dir=tmp_path / "run", max_steps=2, per_device_train_batch_size=4, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True, learning_rate=1e-3, logging_strategy="no",
    )  # fmt: skip
    before = model.encode(["Bread and butter."])
    loss = losses.MultipleNegativesRankingLoss(model)
    SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=loss).train()
    after = model.encode(["Bread and butter."])
    assert np.abs(after - before).max() > 1e-4
    model.save(str(tmp_path / "further"))
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path / "further")).encode(["Bread and butter."]), after)
    texts = ["Bread and butter.", "A ship."]  # and here its config still says how it pools
    np.testing.assert_allclose(ours(tmp_path / "further", texts)[:1], after, atol=1e-5)
