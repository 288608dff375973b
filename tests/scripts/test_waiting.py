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
from docsplit.modeling.objectives import info_nce
from docsplit.modeling.objectives.info_nce import info_nce as _info_nce
from run_docsplit_pretraining import main
from tests.processes import spawn
from tests.trajectories import VARIANTS, Variant, options_of
from tests.waits import second_step, watched_file

_embed, _train = BertEmbeddings.forward, Trainer.train

MOST_WAITS = 5  # of a step, whatever the number of micro-batches
SHORT = ("--max_seq_length", "24", "--per_device_train_batch_size", "8", "--micro_batch_tokens")
ONE_ROW, TWO_ROWS = (*SHORT, "24"), (*SHORT, "48")  # in a micro-batch

OF_QUERIES = "--view query_document --queries first_sentence --negatives random --negatives_per_query 2"
STEPS = {
    "docsplit": VARIANTS["docsplit"],
    "bregman": VARIANTS["bregman"],
    "neighbours": VARIANTS["neighbours"],
    "graph": VARIANTS["graph"],
    "queries": Variant(OF_QUERIES),
}
EVENT = "an event of the step before"
FINITE = ("docsplit/training/callbacks.py", "_look")  # what the step before answers
TARGETS = ("docsplit/modeling/objectives/neighbour_distillation.py", "of")  # ids, whose vectors the host has
ALLOWED = {FINITE: 1, TARGETS: 1}  # times a step, by file and function


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The second step of each, watched in one process, for the device stays registered there."""
    file = tmp_path_factory.mktemp("steps") / "steps"
    spawn(_watch_all, (file,))
    return pickle.loads(file.read_bytes())


def _watch_all(index, file):
    gc.freeze()
    torch.set_num_threads(1)
    steps = {}
    for name, variant in STEPS.items():
        rows = ONE_ROW if name == "neighbours" else TWO_ROWS  # whose encoder reads one view alone
        steps[name] = step_in_packs([*options_of(variant), *rows])
    steps["with reads"] = _step_with_reads()
    file.write_bytes(pickle.dumps(steps))


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
def test_a_step_of_many_micro_batches_waits_at_most_five_times(steps, name):
    step = steps[name]
    assert step.forward_passes > MOST_WAITS  # or one for each would not be seen
    counts = Counter()
    for site, count in step.waits:
        counts[place(site)] += count
    assert {key: count for key, count in counts.items() if count > ALLOWED.get(key, 0)} == {}, step.waits
    assert counts.total() <= MOST_WAITS
    assert [place(site) for site, _ in step.waits if site.why == EVENT] == [FINITE]  # the callbacks were there


def test_a_read_that_is_added_is_found_with_its_line(steps):
    """In the loss, and in the encoder, which cached gradients run again in the backward pass."""
    step = steps["with reads"]
    found = {site.function: count for site, count in step.waits if site.file == "tests/scripts/test_waiting.py"}
    assert found == {"_loss_with_a_read": 1, "_embed_with_a_read": 2 * step.forward_passes}


def _step_with_reads():
    with (
        mock.patch.object(info_nce, "info_nce", _loss_with_a_read),
        mock.patch.object(BertEmbeddings, "forward", _embed_with_a_read),
    ):
        return second_step([*options_of(VARIANTS["cached_gradients"]), *TWO_ROWS])


def _loss_with_a_read(*arguments):
    total = _info_nce(*arguments)
    return total if total.item() >= 0 else -total


def _embed_with_a_read(embeddings, *arguments, **keywords):
    states = _embed(embeddings, *arguments, **keywords)
    return states if states.isfinite().all() else states * 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["docsplit", "bregman"])
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
        waits.extend(warning for warning in caught if "called a synchronizing" in str(warning.message))
        return output

    options = ["--use_cpu", "False", "--bf16", "True", "--max_steps", "3", "--logging_steps", "9"]
    with mock.patch.object(Trainer, "train", train):
        run_here(
            main, *options_of(STEPS[name]), *TWO_ROWS, *options, "--save_strategy", "no", "--output_dir", tmp_path
        )
    files = {file for file, _ in ALLOWED}
    assert [str(warning) for warning in waits if watched_file(warning.filename) not in files] == []
