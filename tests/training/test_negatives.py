"""Mining of hard negatives against a loop, and what the callback refuses."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import TrainerState

from docsplit.data.sets.rankings import Retrieved
from docsplit.runtime.files import build_once
from docsplit.training.negatives import NEGATIVES_FILE, NOTE, NegativesCallback, mine
from docsplit.training.run_arguments import NEGATIVES_FOLDER, QueryArguments
from tests.mutations import mutated_copy


def by_loop(retrieved, is_relevant, min_rank, margin):
    pools, reasons = [], {"relevant": 0, "above_min_rank": 0, "within_margin": 0}
    for rows, scores, relevant in zip(retrieved.rows.tolist(), retrieved.scores.tolist(), is_relevant.tolist()):
        best = max((score for row, score, is_hit in zip(rows, scores, relevant) if is_hit and row >= 0), default=None)
        pool = []
        for rank, (row, score, is_hit) in enumerate(zip(rows, scores, relevant)):
            if row < 0:
                continue
            if is_hit:
                reasons["relevant"] += 1
            elif rank < min_rank:
                reasons["above_min_rank"] += 1
            elif margin is not None and (best is None or score > best - abs(best) * margin):
                reasons["within_margin"] += 1
            else:
                pool.append(row)
        pools.append(pool)
    return pools, reasons


@pytest.mark.parametrize(("min_rank", "margin"), [(0, None), (2, None), (0, 0.0), (1, 0.1)])
def test_what_is_kept_equals_a_loop(min_rank, margin):
    rng = np.random.default_rng(0)
    scores = -np.sort(-rng.normal(size=(40, 12)).astype(np.float32), axis=1)  # some below 0
    rows = np.stack([rng.permutation(50)[:12] for _ in range(40)])
    rows[3, 5:], rows[4] = -1, -1
    retrieved, is_relevant = Retrieved(rows, scores), rng.random(rows.shape) < 0.15
    pools, shares = mine(retrieved, is_relevant, min_rank, margin)
    expected, reasons = by_loop(retrieved, is_relevant, min_rank, margin)
    assert [[row for row in pool if row >= 0] for pool in pools.tolist()] == expected
    assert any(expected)
    for name, share in shares.items():
        assert share == pytest.approx(reasons[name] / (rows >= 0).sum())
    assert ("within_margin" in shares) == (margin is not None)


def callback(tmp_path, negatives, checkpoint=None):
    parts = dict.fromkeys(("model", "processing_class", "data_collator", "train_dataset"))
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path), process_index=0), **parts)
    return NegativesCallback(trainer, QueryArguments(negatives=negatives), checkpoint)


def test_negatives_that_are_gone_or_changed_are_not_trained_with(tmp_path):
    def build(folder):
        np.save(folder / NEGATIVES_FILE, np.arange(40, dtype=np.int32).reshape(4, 10))

    build_once(tmp_path / "whole", build)
    for seed in range(9):
        output_dir = tmp_path / str(seed)
        how = mutated_copy(tmp_path / "whole", output_dir / NEGATIVES_FOLDER / "key", seed) if seed else "gone"
        (output_dir / "checkpoint-3").mkdir(parents=True)
        (output_dir / "checkpoint-3" / NOTE).write_text(json.dumps({"phase": 1, "file": f"key/{NEGATIVES_FILE}"}))
        with pytest.raises(ValueError, match=rf"key/{NEGATIVES_FILE}, but .*: put it back, or start") as refusal:
            callback(output_dir, ["self"], output_dir / "checkpoint-3")
        assert "\n" not in str(refusal.value), how


def test_a_training_of_one_epoch_has_no_half(tmp_path):
    for kinds, epochs in ((["bm25"], 1), (["bm25", "self"], 2)):
        callback(tmp_path, kinds).on_train_begin(None, TrainerState(num_train_epochs=epochs), None)
    with pytest.raises(ValueError, match="change when half the epochs are over, and there is one"):
        callback(tmp_path, ["bm25", "self"]).on_train_begin(None, TrainerState(num_train_epochs=1), None)
