"""Figures of the studies: PNG files as small as they can be without losing a pixel."""

from io import BytesIO
from pathlib import Path

from PIL import Image

from docsplit.evaluation.results.plots import plt


def save(figure: plt.Figure, path: Path, dpi: int = 120) -> None:
    """Write a figure, which has no transparent parts, and close it."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    Image.open(drawn).convert("RGB").save(path, "png", optimize=True, dpi=(dpi, dpi))
    plt.close(figure)
