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
from docsplit.evaluation.analysis.report import Figure, Section, Table, literal, number, save_figure

matplotlib.use("Agg")  # no screen needed
MOST_PASSAGES = 50  # of the document that is shown, of about a hundred words
MOST_HEARD, LETTERS = 5, 200  # passages in the table, and of each


def choose_document(texts: Sequence[str]) -> int:
    """The number of the text with the most sections, and of these with the most passages, but no more than 50.

    Raises:
        ValueError: if none has two passages and so few.
    """
    best, chosen = (0, 1), -1
    for place, text in enumerate(texts):
        passages = to_passages(text)
        size = (len({passage.section for passage in passages}), len(passages))
        if 2 <= len(passages) <= MOST_PASSAGES and size > best:
            best, chosen = size, place
    if chosen < 0:
        raise ValueError(
            f"No document of the sample has 2 to {MOST_PASSAGES} passages of about a hundred words: leave "
            "graph_attention out of --analyses, or raise --sample_documents."
        )
    return chosen


def document_node_figure(shown: dict[str, dict[str, Any]], path: Path) -> Figure:
    """Figure 6: a line of panels for each encoder, its graphs side by side; the document node's attention.

    Args:
        shown: of each encoder `weights`, of each kind of graph (n + 1, n + 1), and `kind`, that of its training.
    """
    figure, axes = _panels(shown, 2.2)
    for axis, (_, _, weights) in zip(axes.flat, _each(shown)):
        axis.bar(range(len(weights)), weights[0], color=["0.6"] + ["C0"] * (len(weights) - 1))
        axis.set(xlabel="node", ylabel="attention", ylim=(0, None))
    rows = [(name, kind, node, f"{weight:.5g}") for name, kind, weights in _each(shown)
            for node, weight in enumerate(weights[0])]  # fmt: skip
    caption = "Attention of the document node; node 0, in grey, is itself."
    return save_figure(figure, path, caption, ["encoder", "graph", "node", "attention"], rows)


def all_nodes_figure(shown: dict[str, dict[str, Any]], path: Path) -> Figure:
    """Figure 7: the same of all nodes, as matrices."""
    figure, axes = _panels(shown, 3.6)
    for axis, (_, _, weights) in zip(axes.flat, _each(shown)):
        # White where nodes are no neighbours: their weight is exactly 0.
        image = axis.imshow(np.ma.masked_equal(weights, 0), cmap="viridis", interpolation="nearest", vmin=0)
        figure.colorbar(image, ax=axis, fraction=0.046)
        axis.set(xlabel="attended to", ylabel="node")
    rows = [(name, kind, node, other, f"{weight:.5g}") for name, kind, weights in _each(shown)
            for node, own in enumerate(weights) for other, weight in enumerate(own)]  # fmt: skip
    caption = "Attention of all nodes; white: no neighbours."
    return save_figure(figure, path, caption, ["encoder", "graph", "node", "attended to", "attention"], rows)


def _each(shown: dict[str, dict[str, Any]]) -> list[tuple[str, str, np.ndarray]]:
    return [(name, kind, weights) for name, one in shown.items() for kind, weights in one["weights"].items()]


def _panels(shown: dict[str, dict[str, Any]], height: float) -> tuple[Any, Any]:
    columns = max(len(one["weights"]) for one in shown.values())
    size = (4.6 * columns, height * len(shown) + 0.6)
    figure, axes = plt.subplots(len(shown), columns, figsize=size, squeeze=False, layout="constrained")
    for line, (name, one) in zip(axes, shown.items()):
        for axis, kind in zip(line, one["weights"]):
            trained = ", as it was trained" if kind == one["kind"] else ", with the same weights"
            axis.set_title(literal(f"{name}: {kind} graph{trained}"), fontsize=8)
    return figure, axes


def graph_attention_section(found: dict[str, Any], folder: Path) -> Section:
    """The two figures, and the passages that the document's vector takes most from.

    Args:
        found: `document`, of the test documents; `encoders`, of each `passages` (their texts), `weights` and `kind`.
    """
    shown = {name: one | {"weights": {kind: np.asarray(own) for kind, own in one["weights"].items()}}
             for name, one in found["encoders"].items()}  # fmt: skip
    cells = []
    for name, one in shown.items():
        weights = one["weights"][one["kind"]][0]
        heard = 1 + np.argsort(-weights[1:], kind="stable")[:MOST_HEARD]
        for node in [0, *heard]:
            text = "the document" if node == 0 else " ".join(one["passages"][node - 1].split())[:LETTERS]
            cells.append([name, str(node), number(float(weights[node]), 3), text])
    notes = [
        f"Test document {found['document']}: of the sample the one with the most sections, and then passages. Weights "
        "of the last layer, the mean over heads. Uniform attention would be 1 / number of neighbours.",
        "Full and section graph side by side are two readings by the same weights, of which one was trained.",
    ]
    table = Table("The document node, and the passages it attends to most.", ["encoder", "node", "weight", ""], cells)
    figures = [
        document_node_figure(shown, folder / "graph_attention_document.png"),
        all_nodes_figure(shown, folder / "graph_attention_nodes.png"),
    ]
    return Section("Graph attention", notes, [table], figures)
