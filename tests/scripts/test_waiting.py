"""A training step hardly waits for the device, however many micro-batches it has (`tests.waits` watches it)."""

import gc
import pickle
import warnings
from collections import Counter
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from transformers import Trainer, TrainerCallback
from transformers.models.bert.modeling_bert import BertEmbeddings

from docsplit.modeling import packing
from docsplit.modeling.distributed import fetch, send
from docsplit.modeling.objectives import info_nce
from docsplit.modeling.objectives.info_nce import info_nce as _info_nce
from run_docsplit_pretraining import main
from tests.processes import spawn
from tests.trajectories import VARIANTS, Variant, options_of
from tests.waits import Watch, register, second_step, watched, watched_file

_embed, _train = BertEmbeddings.forward, Trainer.train

MOST_WAITS = 5  # of a step, whatever the number of micro-batches
SHORT = ("--max_seq_length", "24", "--per_device_train_batch_size", "8", "--micro_batch_tokens")
ONE_ROW, TWO_ROWS, ALL_ROWS = (*SHORT, "24"), (*SHORT, "48"), (*SHORT, "100000")  # in a micro-batch

OF_QUERIES = "--view query_document --queries first_sentence --negatives random --negatives_per_query 2"
STEPS = {
    "docsplit": VARIANTS["docsplit"],
    "cached_gradients": VARIANTS["cached_gradients"],
    "contrastive_tension": VARIANTS["contrastive_tension"],
    "bregman": VARIANTS["bregman"],
    "neighbours": VARIANTS["neighbours"],
    "graph": VARIANTS["graph"],
    "queries": Variant(OF_QUERIES),
}
OF_ONE_VIEW = ("contrastive_tension", "neighbours")  # the encoder reads one view alone
EVENT = "an event of the step before"
FINITE = ("docsplit/training/callbacks.py", "_look")  # what the step before answers
TARGETS = ("docsplit/modeling/objectives/neighbour_distillation.py", "of")  # ids, whose vectors the host has
ALLOWED = {FINITE: 1, TARGETS: 1}  # times a step, by file and function

# Once a forward pass, of padded rows alone: transformers looks whether a mask hides anything
OF_A_MASK = ("transformers/masking_utils.py", "_ignore_bidirectional_mask_sdpa")


def in_a_process(tmp_path, function, *arguments):
    """What a function returns, called in a process of its own: the device stays registered there."""
    spawn(_call, (tmp_path / "returned", function, arguments))
    return pickle.loads((tmp_path / "returned").read_bytes())


def _call(index, file, function, arguments):
    gc.freeze()
    torch.set_num_threads(1)
    file.write_bytes(pickle.dumps(function(*arguments)))


def place(site):
    return site.file, site.function


def step_in_packs(words):
    """Watch a step whose attention is that of CUDA in what it asks for: a stand-in knows no borders of texts."""
    with (
        mock.patch.object(packing, "_text_by_text", _attend_to_all),
        mock.patch.object(packing, "_difference", return_value=0.0),
    ):
        return second_step([*words, "--packed_sequences", "true"])


def _attend_to_all(query, key, value, *_):
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_many_micro_batches_waits_at_most_five_times(tmp_path, name):
    words = [*options_of(STEPS[name]), *(ONE_ROW if name in OF_ONE_VIEW else TWO_ROWS)]
    step = in_a_process(tmp_path, step_in_packs, words)
    assert step.forward_passes > MOST_WAITS  # or one for each would not be seen
    counts = Counter()
    for site, count in step.waits:
        counts[place(site)] += count
    assert {key: count for key, count in counts.items() if count > ALLOWED.get(key, 0)} == {}, step.waits
    assert counts.total() <= MOST_WAITS
    assert [place(site) for site, _ in step.waits if site.why == EVENT] == [FINITE]  # the callbacks were there


@pytest.mark.parametrize("name", ["docsplit", "graph"])
def test_padded_rows_wait_for_their_masks_alone(tmp_path, name):
    step = in_a_process(tmp_path, second_step, [*options_of(STEPS[name]), *TWO_ROWS])
    counts = {place(site): count for site, count in step.waits}
    assert counts.keys() <= {*ALLOWED, OF_A_MASK}, step.waits
    assert counts[OF_A_MASK] == step.forward_passes > MOST_WAITS


def test_a_read_that_is_added_is_found_with_its_line(tmp_path):
    """In the loss, and in the encoder, which cached gradients run again in the backward pass."""
    step = in_a_process(tmp_path, _step_with_reads)
    found = {site.function: count for site, count in step.waits if site.file == "tests/scripts/test_waiting.py"}
    assert found == {"_loss_with_a_read": 1, "_embed_with_a_read": 2 * step.forward_passes}


def _step_with_reads():
    with (
        mock.patch.object(info_nce, "info_nce", _loss_with_a_read),
        mock.patch.object(BertEmbeddings, "forward", _embed_with_a_read),
    ):
        return second_step([*options_of(STEPS["cached_gradients"]), *TWO_ROWS])


def _loss_with_a_read(*arguments):
    total = _info_nce(*arguments)
    return total if total.item() >= 0 else -total


def _embed_with_a_read(embeddings, *arguments, **keywords):
    states = _embed(embeddings, *arguments, **keywords)
    return states if states.isfinite().all() else states * 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["docsplit", "cached_gradients", "contrastive_tension"])
def test_cuda_finds_no_other_waits(run_here, tmp_path, name):
    """PyTorch warns of operations that synchronise, but for events; the simulated device must not be kinder."""
    waits = []

    class WatchSecondStep(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            torch.cuda.set_sync_debug_mode("warn" if state.global_step == 1 else "default")

    def train(trainer, *arguments, **keywords):
        trainer.add_callback(WatchSecondStep)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            output = _train(trainer, *arguments, **keywords)
        waits.extend(warning for warning in caught if "synchronizing" in str(warning.message))
        return output

    options = [
        "--use_cpu",
        "False",
        "--bf16",
        "True",
        "--max_steps",
        "3",
        "--logging_steps",
        "1000",
        "--save_strategy",
        "no",
    ]
    with mock.patch.object(Trainer, "train", train):
        run_here(main, *options_of(STEPS[name]), *TWO_ROWS, *options, "--output_dir", tmp_path)
    files = {file for file, _ in ALLOWED}
    assert [str(warning) for warning in waits if watched_file(warning.filename) not in files] == []


# Each gets x (3, 4) on the device, y (3, 4) on the host and the device
WAITS = {
    "item": lambda x, y, device: x[0, 0].item(),
    "bool": lambda x, y, device: bool((x > 0).all()),
    "tolist": lambda x, y, device: x.tolist(),
    "nonzero": lambda x, y, device: x.nonzero(),
    "unique": lambda x, y, device: x.unique(),
    "equal": lambda x, y, device: torch.equal(x, x),
    "booleans": lambda x, y, device: x[x > 0],
    "repeat_interleave": lambda x, y, device: torch.repeat_interleave(torch.arange(3, device=device)),
    "cpu": lambda x, y, device: x.cpu(),
    "to the host": lambda x, y, device: x.to("cpu"),
    "to the device": lambda x, y, device: y.to(device),
    "pinned, but blocking": lambda x, y, device: y.pin_memory().to(device),
    "not pinned": lambda x, y, device: y.to(device, non_blocking=True),
    "tensor": lambda x, y, device: torch.tensor([1, 2], device=device),
}
NO_WAITS = {
    "arithmetic": lambda x, y, device: (x + 1) @ x.T,
    "scalar of the host": lambda x, y, device: x * torch.tensor(2.0),
    "rows of the device": lambda x, y, device: x[torch.arange(2, device=device)],
    "send": lambda x, y, device: send(y, device),
    "a part of pinned memory": lambda x, y, device: y.pin_memory()[1:].to(device, non_blocking=True),
    "fetch": lambda x, y, device: fetch(x),
    "on the host": lambda x, y, device: (y[y > 0].tolist(), y.unique(), y.sum().item()),
    "backward": lambda x, y, device: x.clone().requires_grad_().square().sum().backward(),
}


def test_what_waits_is_found_and_nothing_else(tmp_path):
    counts = in_a_process(tmp_path, _count_of_each)
    assert {name for name in WAITS if not counts[name]} == set()
    assert {name: counts[name] for name in NO_WAITS if counts[name]} == {}


def _count_of_each():
    device, counts = register(), {}
    for name, act in (WAITS | NO_WAITS).items():
        found = Watch()
        with watched(found):
            x = send(torch.arange(12.0).view(3, 4), device)
            act(x, torch.arange(12.0).view(3, 4), device)
        counts[name] = sum(sum(sites.values()) for sites in found.waits.values())
    return counts
