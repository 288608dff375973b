"""The levers of the study: each acts in real steps of the script, and its loss is that of a slow version."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from transformers import trainer

from benchmarks.studies.adaptation import levers
from benchmarks.studies.adaptation.report import STUDY
from docsplit.data.seen_documents import document_id
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.neighbours import smooth, word_vectors
from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE, NeighbourDistillation, Targets
from docsplit.runtime.command import SHOW_TRACEBACK
from docsplit.training.run import Run
from tests.conftest import make_corpus, weights_of


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in make_corpus(40)))
    return path


@pytest.fixture
def pull(run_here, scattered, documents, tmp_path):
    """Runs the script with levers for some steps; the folder of the encoder."""

    def run(*words, steps=2, options=(), objective=("neighbour_distillation", "--num_neighbours", 5)):
        output_dir = tmp_path / "encoder"
        run_here(
            levers.main, *words, "--model_name_or_path", scattered, "--corpus", documents, "--output_dir", output_dir,
            "--mlm_weight", 0, "--use_cpu", "--bf16", False, "--objective", *objective,
            "--per_device_train_batch_size", 8, "--max_steps", steps, "--save_strategy", "no",
            "--learning_rate", "3e-3", "--lr_scheduler_type", "constant", "--warmup_steps", 0, "--logging_steps", 1,
            "--disable_tqdm", True, *options,
        )  # fmt: skip
        return output_dir

    before = Run.prepare_objective, list(trainer.DEFAULT_CALLBACKS)
    yield run
    assert (Run.prepare_objective, trainer.DEFAULT_CALLBACKS) == before  # nothing of a lever stays


def test_frozen_layers_stay_bit_for_bit_while_others_move(pull, scattered, caplog):
    caplog.set_level("INFO")
    folder = pull("frozen_layers=1")
    before, after = weights_of(scattered), weights_of(folder)
    both = {name for name in before.keys() & after.keys() if "pooler." not in name}
    frozen = {name for name in both if name.startswith(("embeddings.", "encoder.layer.0."))}
    assert 10 < len(frozen) < len(both)
    assert {name for name in both if torch.equal(before[name], after[name])} == frozen
    count = sum(after[name].numel() for name in frozen)
    assert json.loads((folder / "all_results.json").read_text())["frozen_parameters"] == count
    assert f"{count:,} parameters" in caplog.text


def test_targets_are_made_again_by_the_moving_average(pull, scattered, documents, monkeypatch):
    averages, seen = [], []
    refresh, forward = levers.RefreshedTargets.on_step_end, NeighbourDistillation.forward

    def record(self, args, state, control, **kwargs):
        seen.append(
            {name: tensor.detach().clone() for name, tensor in kwargs["model"].encoder.base_model.named_parameters()}
        )
        refresh(self, args, state, control, **kwargs)
        averages.append({name: tensor.detach().clone() for name, tensor in self.average[0].model.named_parameters()})

    def spy(self, *args):
        used.append(self.targets.vectors.clone())
        return forward(self, *args)

    used = []
    monkeypatch.setattr(levers.RefreshedTargets, "on_step_end", record)
    monkeypatch.setattr(NeighbourDistillation, "forward", spy)
    folder = pull("refreshed_every=2", "moving_average=0.6", steps=4)

    (first, again) = (Targets(folder / name) for name in (TARGETS_FILE, levers.REFRESHED_TARGETS_FILE))
    assert Targets(folder / levers.REFRESHED_TARGETS_FILE).about == {"step": "2"}  # after the last, none
    assert [torch.equal(tensor, first.vectors) for tensor in used] == [True, True, False, False]
    assert torch.equal(used[2], again.vectors)
    encoder = load_encoder(str(scattered), device="cpu")
    weights = {name: value for name, value in encoder[0].model.named_parameters() if "pooler." not in name}
    expected = {name: tensor.detach().clone() for name, tensor in weights.items()}
    for student in seen[:2]:
        expected = {name: 0.6 * tensor + 0.4 * student[name] for name, tensor in expected.items()}
    for name, tensor in expected.items():
        torch.testing.assert_close(averages[1][name], tensor)
        weights[name].data.copy_(tensor)
    texts = {document_id(text): text for row in documents.open() for text in [json.loads(row)["text"]]}
    ordered = [texts[number] for number in again.document_ids.tolist()]
    embeddings, _ = embed_documents(encoder, ordered)
    np.testing.assert_allclose(again.vectors.float(), smooth(embeddings, 5, words=word_vectors(ordered)), atol=2e-3)
    assert np.abs(again.vectors.float() - first.vectors.float()).max() > 0.02


def vectors_of(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(size, 6, generator=generator, dtype=torch.float64)
    views = torch.randn(size, 2, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.arange(size)
    ids[-1] = 0  # the same document
    return views, targets, ids[:, None] == ids


def test_soft_contrast_against_a_loop():
    views, targets, same = vectors_of(7)
    total = 0.0
    for document in range(7):
        others = [other for other in range(7) if not same[document, other]]
        wanted = F.cosine_similarity(targets[document], targets[others]).div(0.05).softmax(0)
        for view in (0, 1):
            given = F.cosine_similarity(views[document, view], views[others, 1 - view]).div(0.05).softmax(0)
            total += (wanted * (wanted / given).log()).sum() / 2
    loss = levers.soft_contrast(views, targets, same)
    torch.testing.assert_close(loss, total / 7)
    torch.testing.assert_close(*(torch.autograd.grad(value, views)[0] for value in (loss, total / 7)))
    alike = targets[:, None].expand(-1, 2, -1)
    assert levers.soft_contrast(alike, targets, same) == pytest.approx(0, abs=1e-12)
    assert levers.soft_contrast(views[:1], targets[:1], same[:1, :1]) == 0  # no others


def test_masked_negatives_are_each_among_the_nearest_of_the_other_and_have_no_gradient(tmp_path):
    views, targets, same = vectors_of(16)
    cosines = F.cosine_similarity(targets[:, None], targets, dim=-1)
    cosines[same] = -2
    nearest = [set(row.argsort(descending=True)[:5].tolist()) for row in cosines]
    expected = torch.tensor(
        [
            [(a in nearest[b] and b in nearest[a]) or (a != b and bool(same[a, b])) for b in range(16)]
            for a in range(16)
        ]
    )
    assert 10 < expected.sum() < 16 * 15 / 2
    assert torch.equal(levers.masked_negatives(targets, same), expected)

    ids = torch.arange(16)
    ids[-1] = 0
    distinct = targets.clone()
    distinct[-1] = distinct[0]  # one document, one target
    Targets.write(tmp_path / "targets", ids[:-1], F.normalize(distinct[:-1].float(), dim=1), {})
    options = NeighbourDistillation.Options()
    plain = NeighbourDistillation(options, torch.nn.Identity())
    plain.targets = Targets(tmp_path / "targets")
    masked = levers.WithContrast(plain, torch.nn.Identity(), levers.Levers(masked_contrast=3.0))
    output, without = masked(views, ids, [16]), plain(views, ids, [16])
    torch.testing.assert_close(output.loss, without.loss + 3 * output.parts["masked_contrast"])
    excluded = levers.masked_negatives(plain.targets.of(ids).double(), same)
    assert output.num_masked_negatives == excluded.sum()
    # The second halves move the gradient of a first half only where they are its negatives, or its own.
    (gradient,) = torch.autograd.grad(output.loss, views, create_graph=True)
    for document in (0, 3, 8):
        (moved,) = torch.autograd.grad(gradient[document, 0].square().sum(), views, retain_graph=True)
        assert torch.equal(moved[:, 1].abs().sum(dim=1) == 0, excluded[document])


@pytest.mark.parametrize("lever", ["soft_contrast", "masked_contrast"])
def test_contrasts_are_trained_with_their_weight(pull, lever):
    seen = []
    for weight in (0.5, 1):
        options = ["--overwrite_output_dir", "--save_strategy", "steps", "--save_steps", 1]
        state = pull(f"{lever}={weight}", steps=1, options=options) / "checkpoint-1" / "trainer_state.json"
        seen += [entry for entry in json.loads(state.read_text())["log_history"] if lever in entry]
    half, whole = seen
    assert half[lever] == whole[lever] > 0.01
    assert whole["loss"] - half["loss"] == pytest.approx(half[lever] / 2, rel=1e-2)


def test_general_documents_join_the_corpus(pull, documents, tmp_path, capsys):
    sections = [[{"heading": "A", "text": row["text"]}] for row in make_corpus(30, seed=1)]
    general = tmp_path / "general.jsonl"
    general.write_text("".join(json.dumps({"sections": article}) + "\n" for article in sections))
    folder = pull(f"replay={general}", "replay_count=7")
    assert "7 documents of 30 join the 40" in capsys.readouterr().out
    rows = [json.loads(line)["text"] for line in (tmp_path / "documents_with_replay.jsonl").open()]
    assert rows[:40] == [json.loads(line)["text"] for line in documents.open()]
    assert len(set(rows[40:])) == 7
    assert set(rows[40:]) <= {f"A\n\n{article[0]['text']}" for article in sections}
    ids = Targets(folder / TARGETS_FILE).document_ids.tolist()
    assert set(ids) == {document_id(text) for text in rows}


def test_what_cannot_act_is_refused(pull, tmp_path, monkeypatch):
    monkeypatch.setenv(SHOW_TRACEBACK, "1")  # or it would end the process in one line

    def message(*words, **how):
        with pytest.raises(ValueError) as failure:  # noqa: PT011 (whose message is what is tested)
            pull(*words, **how)
        return str(failure.value)

    assert "2 layers" in message("frozen_layers=3")
    assert "No lever" in message()
    assert "'frozen'" in message("frozen=3")
    assert "expected a number" in message("frozen_layers=some")
    assert "without refreshed_every" in message("frozen_layers=1", "moving_average=0.5")
    assert "below 1" in message("refreshed_every=2", "moving_average=1")
    assert "0 (off) or more" in message("soft_contrast=-1")
    assert "leave out --lora_r" in message("refreshed_every=2", options=["--lora_r", 2])
    assert "--objective neighbour_distillation" in message("frozen_layers=1", objective=["info_nce"])
    assert "has 40 documents" in message(f"replay={tmp_path / 'documents.jsonl'}", "replay_count=41")


def test_the_study_pulls_a_lever_in_each_of_its_cells():
    group = yaml.safe_load(STUDY.read_text())["groups"]["search_levers"]
    assert group["code"] == ["benchmarks/studies/adaptation/levers.py"]
    pulled = [levers.read([case["pulled"], "--use_cpu"]) for case in group["cases"]]
    assert all(words == ["--use_cpu"] for _, words in pulled)
    assert len({str(pulled_apart) for pulled_apart, _ in pulled}) == 4
