"""Neighbour distillation: the loss against a loop, and what its targets need of the caller."""

import re

import pytest
import torch
from safetensors import safe_open

from docsplit.modeling.objectives.neighbour_distillation import Targets
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import OF_IDS, tiny_config
from tests.mutations import mutated_copy

IDS = torch.tensor([40, 7, 2**62, 11, 3])


@pytest.fixture
def targets(tmp_path):
    vectors = torch.nn.functional.normalize(torch.randn(5, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    Targets.write(tmp_path / "targets.safetensors", IDS, vectors, {"options": "{}"})
    return tmp_path / "targets.safetensors", vectors


@pytest.fixture
def batch():
    ids = torch.randint(5, 60, (3, 2, 12), generator=torch.Generator().manual_seed(1))
    attention_mask = torch.ones_like(ids)
    attention_mask[1, 0, 7:] = attention_mask[2, 1, 3:] = 0
    return {"input_ids": ids, "attention_mask": attention_mask, "document_ids": IDS[[2, 4, 0]]}


def make_model(tokenizer, path):
    """In training, in which there is no dropout."""
    torch.manual_seed(0)
    settings = {"pooling": "mean", "mlm_weight": 0.0, "objective": "neighbour_distillation"}
    config = tiny_config(tokenizer, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    model = DocSplitForContrastivePretraining.from_config(config, OF_IDS, max_seq_length=64, **settings)
    model.objective.targets = Targets(path)
    return model.train()


def test_loss_against_a_loop(wordpiece, targets, batch):
    path, vectors = targets
    model = make_model(wordpiece, path)
    output, losses = model(**batch), []
    for document, number in enumerate(batch["document_ids"].tolist()):
        target = vectors[IDS.tolist().index(number)].double()
        for view in output.embeddings[document].detach().double():
            losses.append(1 - float(view @ target / view.norm() / target.norm()))
    assert output.contrastive_loss.item() == pytest.approx(sum(losses) / len(losses), abs=1e-3)  # targets are float16
    assert max(losses) - min(losses) > 0.05
    assert int(output.num_masked_negatives) == 0


@pytest.mark.parametrize("cached", [False, True])
def test_a_text_that_both_views_are_is_encoded_once(wordpiece, targets, batch, cached):
    path, _ = targets
    model = make_model(wordpiece, path)
    model.cache_gradients = cached
    model(**batch).loss.backward()
    encoded = []
    model.encoder.base_model.register_forward_hook(lambda module, given, output: encoded.append(len(output[0])))
    model(**batch)
    assert sum(encoded) == 6
    whole = {name: tensor[:, :1].expand(-1, 2, -1) if tensor.ndim == 3 else tensor for name, tensor in batch.items()}
    whole |= {"same_text": True}  # as the collator says of the view simcse
    encoded.clear()
    single = model(**whole)
    assert sum(encoded) == 3
    assert int(single.num_computed_tokens) == 6 * 12  # of two views, as the tokens of a batch are counted
    model.zero_grad()
    single.loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    encoded.clear()
    twice = model(**whole | {"same_text": False})
    assert sum(encoded) == 6
    model.zero_grad()
    twice.loss.backward()
    torch.testing.assert_close(single.loss, twice.loss)
    torch.testing.assert_close(single.embeddings, twice.embeddings)
    torch.testing.assert_close(gradients, [weight.grad for weight in model.parameters() if weight.grad is not None])


def test_the_mean_over_processes_is_that_over_their_documents(wordpiece, targets):
    objective, (path, _) = make_model(wordpiece, targets[0]).objective, targets
    objective.targets = Targets(path)
    embeddings = torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(2))
    whole = objective(embeddings, IDS, [5])
    parts = [objective(embeddings[rows], IDS[rows], [2, 3]) for rows in (slice(2), slice(2, 5))]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_documents_without_a_target_are_counted_and_without_any_it_says_who_makes_them(wordpiece, targets, batch):
    model = make_model(wordpiece, targets[0])
    batch["document_ids"] = torch.tensor([7, 8, 2**63 - 1])
    with pytest.raises(ValueError, match="2 of 3 documents of the batch have no target vector"):
        model(**batch)
    model.objective.targets = None
    with pytest.raises(RuntimeError, match=re.escape("docsplit.training.teacher makes them")):
        model(**batch)


def test_the_file_is_in_any_order_the_same(targets, tmp_path):
    path, vectors = targets
    saved = Targets(path)
    order = [3, 0, 1]
    torch.testing.assert_close(saved.of(IDS[order]), vectors[order], atol=1e-3, rtol=1e-3)
    assert saved.about == {"options": "{}"}
    with pytest.raises(FileNotFoundError):
        Targets(tmp_path / "none")
    with safe_open(path, "pt") as file:
        assert file.get_tensor("vectors").dtype == torch.float16


def test_no_damaged_target_is_believed(targets, tmp_path):
    (tmp_path / "whole").mkdir()
    targets[0].rename(tmp_path / "whole" / "targets.safetensors")
    for seed in range(20):
        how = mutated_copy(tmp_path / "whole", tmp_path / f"{seed}", seed)
        with pytest.raises((ValueError, FileNotFoundError), match=f"{seed}/targets.safetensors") as error:
            Targets(tmp_path / f"{seed}" / "targets.safetensors")
        assert "\n" not in str(error.value), how
