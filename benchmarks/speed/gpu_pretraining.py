"""Pretraining BERT-base's size from nothing, as a row of `benchmarks.gpu`: on documents that were tokenised elsewhere.

`prepare` runs where datasets is installed, and writes a folder of some megabytes: token ids, a tokenizer, labelled
texts, and what TF-IDF makes of these. `pretraining` reads it, trains, and probes the encoder before and after.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.gpu_rows import Report, Setting

SHOTS, DRAWS, C = 5, 10, 10.0  # labels a class, draws of them, and the head's
COLUMNS = ("document_ids", "ids", "unit_lengths", "units")  # of all documents, tokens and sentences; sentences of each


def pretraining(setting: Setting, report: Report) -> None:
    """Pretrain BERT-base's size from nothing on the prepared documents, and probe it before and after."""
    import torch
    from transformers import BertConfig, Trainer, TrainingArguments

    from benchmarks.speed.jobs import MODELS
    from docsplit.data.collators import DocSplitCollator
    from docsplit.data.tokenization import load_tokenizer
    from docsplit.embedding.encode import embed_documents
    from modeling_docsplit import DocSplitForContrastivePretraining

    steps, batch_size = (4, 4) if setting.tiny else (2000, 64)
    tokenizer = load_tokenizer(setting.documents)
    labelled = json.loads((setting.documents / "labelled.json").read_text(encoding="utf-8"))
    documents = PreparedDocuments(setting.documents / "documents.npz", steps * batch_size)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), attention_probs_dropout_prob=0.0)
    config.update(MODELS["tiny" if setting.tiny else "base"])
    model = DocSplitForContrastivePretraining.from_config(config, tokenizer, pooling="mean", max_seq_length=512)
    model.to(setting.device)
    collator = DocSplitCollator.for_model(model, tokenizer, view="docsplit", max_seq_length=256)

    def accuracy() -> str:
        train, test = (embed_documents(model.body, labelled[part])[0] for part in ("train", "test"))
        return said(few_shot_accuracy(train, test, labelled))

    report({"what": "random weights", "note": accuracy()})
    report({"what": "TF-IDF", "note": said(labelled["tfidf"])})
    arguments = TrainingArguments(
        str(setting.folder / "trained"), max_steps=steps, per_device_train_batch_size=batch_size, learning_rate=1e-4,
        warmup_steps=0.1, remove_unused_columns=False, use_cpu=setting.device == "cpu", save_strategy="no",
        bf16=setting.precision == "bf16", dataloader_num_workers=0 if setting.tiny else 8, logging_steps=steps // 4,
        disable_tqdm=True, report_to="none", train_sampling_strategy="sequential", dataloader_drop_last=True,
    )  # fmt: skip
    if setting.device == "cuda":
        model.pack_sequences(torch.bfloat16)
    trainer = Trainer(model, arguments, collator, documents)  # type: ignore[arg-type]
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    curve = [round(entry["loss"], 3) for entry in trainer.state.log_history if "loss" in entry]
    line = {"what": f"DocSplit, {steps:,} steps of {batch_size}", "documents": len(documents), "seconds": seconds}
    report(line | {"losses": curve, "note": accuracy()})


class PreparedDocuments:
    """Documents of `--prepare`, as many as a training reads: epoch after epoch, each in another order."""

    def __init__(self, path: Path, count: int):
        with np.load(path) as file:
            self.document_ids, self.ids, self.unit_lengths, self.units = (file[name] for name in COLUMNS)
        self.first_unit = np.concatenate([[0], self.units.cumsum()])
        self.first_id = np.concatenate([[0], self.unit_lengths.cumsum(dtype=np.int64)])
        epochs = range(-(-count // len(self.units)))
        rng = np.random.default_rng(0)
        self.order = np.concatenate([rng.permutation(len(self.units)) for _ in epochs])[:count]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        document, epoch = int(self.order[index]), index // len(self.units)
        start, end = self.first_unit[document : document + 2]
        ids = self.ids[self.first_id[start] : self.first_id[end]]
        about = {"document_id": self.document_ids[document], "epoch": epoch}
        return about | {"input_ids": ids, "unit_lengths": self.unit_lengths[start:end]}


def prepare(corpus: str, folder: Path, vocab_size: int = 16_384) -> None:
    """Tokenise a labelled corpus, without what its probe is measured on, and write what `pretraining` reads.

    Raises:
        ValueError: if the corpus has no labels to probe with.
    """
    from docsplit.data.copies import near_duplicates
    from docsplit.data.corpora import for_pretraining, load_corpus
    from docsplit.data.preparation import tokenize
    from docsplit.data.sets.labelled import load_probe
    from docsplit.data.tokenization import train_wordpiece
    from docsplit.data.words import tfidf_counter
    from docsplit.runtime.files import cache_directory, write_text

    split = load_probe(corpus)
    documents = for_pretraining(corpus, load_corpus(corpus))
    measured = near_duplicates(documents["text"][:], split.test_texts)
    documents = documents.select(np.flatnonzero(~measured))
    tokenizer = train_wordpiece(documents, "text", vocab_size, cache_directory())
    tokenized, _ = tokenize(documents, tokenizer)
    rows = tokenized.with_format("numpy")
    units = list(rows["unit_lengths"][:])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    np.savez_compressed(
        folder / "documents.npz",
        document_ids=rows["document_id"][:],
        ids=np.concatenate(list(rows["input_ids"][:])).astype(np.uint16),
        unit_lengths=np.concatenate(units).astype(np.int32),
        units=np.array(list(map(len, units))),
    )
    labelled = {"train": split.train_texts, "test": split.test_texts}
    labelled |= {"train_labels": split.train_labels.tolist(), "test_labels": split.test_labels.tolist()}
    labelled["draws"] = [draw.tolist() for draw in split.draws(SHOTS, DRAWS)]
    counter = tfidf_counter().fit(split.train_texts)
    features = (counter.transform(texts) for texts in (split.train_texts, split.test_texts))
    labelled["tfidf"] = few_shot_accuracy(*features, labelled)
    write_text(folder / "labelled.json", json.dumps(labelled))
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    print(f"{len(rows):,} documents, {len(split.test_texts):,} of the probe's test; {size:.0f} MB in {folder}.")


def said(accuracy: Sequence[float]) -> str:
    """Write what `few_shot_accuracy` returns."""
    return f"accuracy {accuracy[0]:.1f} with {SHOTS} labels a class, {accuracy[1]:.1f} with all"


def few_shot_accuracy(train: Any, test: Any, labelled: dict[str, Any]) -> tuple[float, float]:
    """Return the accuracy in percent, with a few labels a class in the mean of the draws, and with all.

    The head is logistic regression (C 10) on unit vectors.

    Args:
        train, test: features (N, F) and (M, F).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import normalize

    train, test = normalize(train), normalize(test)
    targets, wanted = np.array(labelled["train_labels"]), np.array(labelled["test_labels"])

    def accuracy(rows: Any) -> float:
        head = LogisticRegression(C=C, max_iter=1000).fit(train[rows], targets[rows])
        return 100 * float((head.predict(test) == wanted).mean())

    return float(np.mean([accuracy(draw) for draw in labelled["draws"]])), accuracy(np.arange(len(targets)))
