"""The losses of short trainings, against those that were recorded before the code was moved about."""

import json

import pytest
import torch

from run_docsplit_pretraining import main
from tests.trajectories import NUM_STEPS, TRAJECTORIES, VARIANTS, options_of, read_trajectory

RECORDED = json.loads(TRAJECTORIES.read_text())
TOLERANCE = 1e-4  # relative: another machine sums in another order
ROUNDING = 1e-5  # absolute: losses of 0.007 are differences of cosines near 1

pytestmark = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="the recorded dropout was drawn by MKL: others draw another"
)


@pytest.fixture
def train(run_here, tmp_path):
    """Trains a variant in this process, as `train_side_by_side` does in another."""

    def run(name: str, folder: str = "run", **options: object):
        words = [word for option, value in options.items() for word in (f"--{option}", value)]
        steps = ["--max_steps", NUM_STEPS, "--save_steps", NUM_STEPS, "--output_dir", tmp_path / folder]
        run_here(main, *options_of(VARIANTS[name]), *steps, *words)
        return read_trajectory(tmp_path / folder)

    return run


def test_every_variant_is_recorded():
    assert RECORDED.keys() == VARIANTS.keys()
    assert {len(losses) for losses in RECORDED.values()} == {NUM_STEPS}


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.processes == 1])
def test_the_losses_are_the_recorded_ones(name, train):
    assert train(name).losses == pytest.approx(RECORDED[name], rel=TOLERANCE, abs=ROUNDING)
