"""A saved figure has the pixels that matplotlib draws."""

from io import BytesIO

import numpy as np
from PIL import Image

from benchmarks.engine.figures import save
from docsplit.evaluation.results.plots import plt


def test_no_pixel_is_lost(tmp_path):
    figure, axis = plt.subplots()
    axis.plot(np.random.default_rng(0).normal(size=50), "o-", alpha=0.5)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=90)
    save(figure, tmp_path / "figure.png", dpi=90)
    saved = Image.open(tmp_path / "figure.png")
    np.testing.assert_array_equal(np.asarray(saved), np.asarray(Image.open(drawn))[..., :3])
    np.testing.assert_allclose(saved.info["dpi"], 90, atol=0.1)
    assert (tmp_path / "figure.png").stat().st_size < len(drawn.getvalue())
    assert not plt.fignum_exists(figure.number)
