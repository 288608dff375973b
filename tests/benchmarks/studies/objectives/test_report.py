"""The study of objectives: rows read as many tokens, and tables have mean and spread over seeds."""

import argparse
import json

import pytest

from benchmarks.studies.objectives import report as objectives
from docsplit.data import corpora, preparation
from docsplit.data.collators import DocSplitCollator
from docsplit.data.tokenization import train_wordpiece
from docsplit.data.views import OF_PASSAGES


def test_rows_of_the_objectives_read_as_many_tokens_a_step(corpus_file, monkeypatch):
    monkeypatch.setattr(objectives, "PASSAGE_WORDS", 10)
    documents = objectives.documents_a_step(str(corpus_file), 6000)
    assert {view for view, _ in documents} >= {"docsplit", "simcse", "crop", "ict", "half", "passages"}
    corpus = corpora.add_text(corpora.load_corpus(str(corpus_file)), "text")
    tokenizer = train_wordpiece(corpus, "text", objectives.VOCABULARY, corpora.cache_directory())
    for (view, longest), count in documents.items():
        dataset, _ = preparation.tokenize(
            corpus, tokenizer, preparation.Segmentation(passage_words=10 if view in OF_PASSAGES else None)
        )
        collator = DocSplitCollator(tokenizer, view, longest, mlm=False, seed=7)  # other draws than those counted
        batch = collator([dataset[row] for row in range(len(dataset))])
        tokens = int(batch["attention_mask"].sum()) * count / len(dataset)
        assert tokens == pytest.approx(6000, rel=0.06), view


def test_tables_of_the_objectives_have_mean_and_spread_over_seeds(tmp_path):
    documents = dict.fromkeys([("docsplit", 128), ("simcse", 128), ("crop", 128)], 64) | {("docsplit", 4096): 9}
    documents |= {(view, 128): 32 for view in ("ict", "half", "passages", "passage_vs_rest")}
    options = argparse.Namespace(work_dir=tmp_path, seeds=[3, 4])
    study = objectives.Study(options, documents)

    def write(folder, rows):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps({"rows": rows}))

    for seed in options.seeds:
        for name in [*objectives.ROWS, *objectives.LENGTHS]:
            value = seed / 10 + (name == "DocSplit") / 100
            links = [
                {"encoder": "e", "head": head, "features": features, "shots": None}
                | {"accuracy_mean": value if features == "raw" else 0.0, "roc_auc_mean": value}
                for head in ("mlp", "cosine", "bm25")
                for features in ("raw", *(["standardized"] if head == "mlp" else []))
            ]  # fmt: skip
            folder = study.folder(name, seed)
            if name in objectives.LENGTHS:
                write(folder, links)
                continue
            write(folder / "retrieval", links)
            probes = [
                {"encoder": "e", "head": "mlp", "features": "raw", "shots": shots, "accuracy_mean": value}
                for shots in (5, 10, 20, None)
            ]
            write(folder / "probe", probes)
            (folder / "all_results.json").write_text(json.dumps({"train_tokens": 1000 * seed}))
    write(study.folder("tfidf", 0), [{"encoder": "tfidf", "head": "linear", "shots": 5, "accuracy_mean": 0.9}])
    results = {"hardware": "x", "steps": 1, "learning_rate": 0.1, "seeds": options.seeds}
    results |= study.tables() | {"references": study.references()}
    text = objectives.markdown(results)
    assert "| DocSplit | 64 | 0.00 | 36.0 ± 7.1 |" in text
    assert "| random start | 0 | 0.00 | 35.0 ± 7.1 |" in text
    assert "| the first 512 | 35.0 ± 7.1 |" in text
    assert "| tfidf | linear | 5 | 90.0 |" in text
    assert "| e | bm25 | all | 30.0 |" in text
    objectives.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
