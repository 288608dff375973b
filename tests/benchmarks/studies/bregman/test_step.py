"""The step of the study of the Bregman ensemble: rows of a probe, and the files of a set."""

import json

import pytest

from benchmarks.studies.bregman import step
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import load_labelled


def row(encoder, head, features="raw", shots=None, **values):
    return {
        "encoder": encoder,
        "head": head,
        "features": features,
        "shots": shots,
        "test_documents": 9,
        "trainable_share": 0.1,
        "embedding_seconds": 2.0,
    } | values


def test_rows_of_a_probe(tmp_path):
    probe = {
        "rows": [row("x", "mlp", micro_f1_mean=0.5, micro_f1_std=0.1, macro_f1_mean=0.4, macro_f1_std=0.2),
                 row("x", "mlp", "standardized", micro_f1_mean=0.6, micro_f1_std=0.1),
                 row("x", "mlp", shots=5, micro_f1_mean=0.1, micro_f1_std=0.1)],
        "comparisons": [{"a": "A=1,2", "b": "B=3,4", "head": "mlp", "features": "raw", "measure": "micro_f1",
                         "difference": 0.1, "low": 0.05, "high": 0.2, "ahead": "A=1,2"}],
    }  # fmt: skip
    (tmp_path / "checkpoint-3").mkdir()
    log = [{"step": 1, "alignment": 1.0}, {"step": 2, "alignment": 0.5, "effective_rank": 7.0}, {"train_loss": 1.0}]
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    probe["rows"].append(row("x", "setfit", shots=8, micro_f1_mean=0.7, micro_f1_std=0.1, seconds=3.0))
    of_one = {result["metric"]: result["value"] for result in step.rows_of(probe, tmp_path)}
    assert of_one == {
        "mlp micro_f1": 0.5, "mlp macro_f1": 0.4, "mlp, standardized, micro_f1": 0.6, "alignment": 0.5,
        "effective_rank": 7.0, "setfit, 8 shots, micro_f1": 0.7,
    }  # fmt: skip
    (alignment,) = (result for result in step.rows_of(probe, tmp_path) if result["metric"] == "alignment")
    assert alignment["history"] == [[1, 1.0], [2, 0.5]]
    seconds = [result for result in step.rows_of(probe, None) if result["metric"].endswith(" seconds")]
    assert [(result["metric"], result["value"]) for result in seconds] == [("setfit, 8 shots, seconds", 5.0)]
    assert [step.name_of(encoder) for encoder in ("o/start", "tfidf", "A=o/1,o/2")] == ["start", "tfidf", "A"]
    *_, compared = step.rows_of(probe, None)
    assert [compared[name] for name in ("method", "value", "low", "ahead")] == ["A - B", 0.1, 0.05, "A"]
    probe["rows"] = [row("A=1,2", "mlp", micro_f1_mean=0.5, micro_f1_std=0.1, seconds=3.0, pretraining_seeds=2)]
    of_group = {result["metric"]: result["value"] for result in step.rows_of(probe, None)}
    assert of_group["mlp seconds"] == 4.0  # half of what embedding with both took


@pytest.mark.parametrize("data", ["20news", "ecthr"])
def test_files_of_a_set_share_no_document(real_data, tmp_path, data):
    step.write_parts(step.parts_of(data, real_data, 200, "test"), tmp_path)
    texts = {name: [json.loads(line)["text"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
             for name in ("train", "validation", "test", "corpus")}  # fmt: skip
    assert texts["corpus"] == texts["train"]
    assert len({*texts["train"], *texts["validation"], *texts["test"]}) == sum(
        len(texts[n]) for n in ("train", "validation", "test")
    )
    files = {f"{name}_file": str(tmp_path / f"{name}.jsonl") for name in ("train", "validation", "test")}
    assert load_labelled(LabelledArguments(**files)).multi_label is (data == "ecthr")
    searched = step.parts_of(data, real_data, 200, "validation")
    assert searched["test"][0] == texts["validation"]


def test_pieces_are_whole_train_documents_of_every_set(real_data, tmp_path):
    path = tmp_path / "new" / "pieces.jsonl"
    step.write_pieces(real_data, 200, path)
    pieces = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    words = " ".join(pieces).split()
    parts = [step.parts_of(data, real_data, 200, "test") for data in step.SETS]
    assert words == " ".join(text for part in parts for text in part["train"][0]).split()
    assert len(pieces) > 2 * sum(len(part["train"][0]) for part in parts)  # most judgments are long
