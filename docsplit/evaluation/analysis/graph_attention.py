"""What the nodes of a document attend to, full graph beside section graph (graph document model, Figures 6 and 7).

All encoders show the same document. Weights are those of the last layer, the mean over its heads; node 0 is the
document, the others are passages, in order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from docsplit.data.passages import to_passages
from docsplit.embedding.attention import GraphReadings
from docsplit.evaluation.analysis.contents import GraphAttentionContents
from docsplit.evaluation.analysis.report import Figure, Section, Table, literal, number, save_figure

matplotlib.use("Agg")  # no screen needed
MOST_PASSAGES = 50  # of the document that is shown
MOST_HEARD, LETTERS = 5, 200  # passages in the table, and of each


def choose_document(texts: Sequence[str], passage_words: Sequence[int]) -> int:
    """Return the number of the text with the most sections, and of these the most passages, but no more than 50.

    Args:
        passage_words: of the encoders that are shown. Each has 2 to 50 passages; those of the first one are compared.

    Raises:
        ValueError: if no text is so.
    """
    best, chosen = (0, 1), -1
    for place, text in enumerate(texts):
        cut = [to_passages(text, words) for words in passage_words]
        size = (len({passage.section for passage in cut[0]}), len(cut[0]))
        if all(2 <= len(passages) <= MOST_PASSAGES for passages in cut) and size > best:
            best, chosen = size, place
    if chosen < 0:
        words = " and of ".join(map(str, sorted({*passage_words})))
        raise ValueError(
            f"No document of the sample has 2 to {MOST_PASSAGES} passages of about {words} words, as the encoders "
            "have: leave graph_attention out of --analyses, or raise --sample_documents."
        )
    return chosen


def document_node_figure(readings: dict[str, GraphReadings], path: Path) -> Figure:
    """Draw the document node's attention (Figure 6): a line of panels for each encoder, its graphs side by side."""
    figure, axes = _panels(readings, 2.2)
    for axis, (_, _, weights) in zip(axes.flat, _each(readings)):
        axis.bar(range(len(weights)), weights[0], color=["0.6"] + ["C0"] * (len(weights) - 1))
        axis.set(xlabel="node", ylabel="attention", ylim=(0, None))
    rows = [(name, kind, node, f"{weight:.5g}") for name, kind, weights in _each(readings)
            for node, weight in enumerate(weights[0])]  # fmt: skip
    caption = "Attention of the document node; node 0, in grey, is itself."
    return save_figure(figure, path, caption, ["encoder", "graph", "node", "attention"], rows)


def all_nodes_figure(readings: dict[str, GraphReadings], path: Path) -> Figure:
    """Draw the attention of all nodes, as matrices (Figure 7)."""
    figure, axes = _panels(readings, 3.6)
    for axis, (_, _, weights) in zip(axes.flat, _each(readings)):
        # White where nodes are no neighbours: their weight is exactly 0.
        image = axis.imshow(np.ma.masked_equal(weights, 0), cmap="viridis", interpolation="nearest", vmin=0)
        figure.colorbar(image, ax=axis, fraction=0.046)
        axis.set(xlabel="attended to", ylabel="node")
    rows = [(name, kind, node, other, f"{weight:.5g}") for name, kind, weights in _each(readings)
            for node, row in enumerate(weights) for other, weight in enumerate(row)]  # fmt: skip
    caption = "Attention of all nodes; white: no neighbours."
    return save_figure(figure, path, caption, ["encoder", "graph", "node", "attended to", "attention"], rows)


def _each(readings: dict[str, GraphReadings]) -> list[tuple[str, str, np.ndarray]]:
    return [(name, kind, weights) for name, reading in readings.items() for kind, weights in reading.weights.items()]


def _panels(readings: dict[str, GraphReadings], height: float) -> tuple[Any, Any]:
    columns = max(len(reading.weights) for reading in readings.values())
    size = (4.6 * columns, height * len(readings) + 0.6)
    figure, axes = plt.subplots(len(readings), columns, figsize=size, squeeze=False, layout="constrained")
    for line, (name, reading) in zip(axes, readings.items()):
        for axis, kind in zip(line, reading.weights):
            trained = ", as it was trained" if kind == reading.kind else ", with the same weights"
            axis.set_title(literal(f"{name}: {kind} graph{trained}"), fontsize=8)
    return figure, axes


def graph_attention_section(contents: GraphAttentionContents, folder: Path) -> Section:
    """Show the two figures, and the passages that the document's vector takes most from."""
    readings = contents.encoders
    cells = []
    for name, reading in readings.items():
        weights = reading.weights[reading.kind][0]
        heard = 1 + np.argsort(-weights[1:], kind="stable")[:MOST_HEARD]
        for node in [0, *heard]:
            text = "the document" if node == 0 else " ".join(reading.passages[node - 1].split())[:LETTERS]
            cells.append([name, str(node), number(float(weights[node]), 3), text])
    notes = [
        f"Test document {contents.document}: of the sample the one with the most sections, and then passages. Weights "
        "of the last layer, the mean over heads. Uniform attention would be 1 / number of neighbours.",
        "Full and section graph side by side are two readings by the same weights, of which one was trained.",
    ]
    table = Table("The document node, and the passages it attends to most.", ["encoder", "node", "weight", ""], cells)
    figures = [
        document_node_figure(readings, folder / "graph_attention_document.png"),
        all_nodes_figure(readings, folder / "graph_attention_nodes.png"),
    ]
    return Section("Graph attention", notes, [table], figures)
