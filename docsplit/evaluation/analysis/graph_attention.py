"""What the nodes of a document attend to, full graph beside section graph (graph document model, Figures 6 and 7).

All encoders show the same document. Weights are those of the last layer, the mean over its heads; node 0 is the
document, the others are passages, in order.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from docsplit.data.passages import to_passages
from docsplit.embedding.attention import GraphReadings
from docsplit.evaluation.analysis.report import Figure, Section, Table, literal, number, save_figure
from docsplit.evaluation.results.report import Json

MOST_PASSAGES = 50  # of the document that is shown


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


def graph_attention_analysis(
    document: int, readings: Mapping[str, GraphReadings], folder: Path
) -> tuple[Json, Section]:
    """Return what analysis.json says, the two figures, and the passages that the document's vector takes most from.

    Args:
        document: number of the test document that all encoders read.
    """
    cells = []
    for name, reading in readings.items():
        weights = reading.weights[reading.kind][0]
        heard = 1 + np.argsort(-weights[1:], kind="stable")[:5]
        for node in [0, *heard]:
            text = "the document" if node == 0 else " ".join(reading.passages[node - 1].split())[:200]
            cells.append([name, str(node), number(float(weights[node]), 3), text])
    notes = [
        f"Test document {document}: of the sample the one with the most sections, and then passages. Weights of the "
        "last layer, the mean over heads. Uniform attention would be 1 / number of neighbours."
    ]
    title = "The document node, and the passages it attends to most."
    table = Table(["encoder", "node", "weight", ""], cells, title=title)
    figures = [_draw(readings, folder, "document", 2.2), _draw(readings, folder, "nodes", 3.6)]
    return {"document": document, "encoders": readings}, Section("Graph attention", notes, [table], figures)


def _draw(readings: Mapping[str, GraphReadings], folder: Path, shown: str, height: float) -> Figure:
    """Draw a line of panels for each encoder, its graphs side by side.

    Args:
        shown: `document`, the document node's attention as bars (Figure 6), or `nodes`, that of all nodes as matrices
            (Figure 7).
    """
    columns = max(len(reading.weights) for reading in readings.values())
    size = (4.6 * columns, height * len(readings) + 0.6)
    figure, axes = plt.subplots(len(readings), columns, figsize=size, squeeze=False, layout="constrained")
    cells: list[list[Any]] = []
    for line, (name, reading) in zip(axes, readings.items()):
        for axis, (kind, weights) in zip(line, reading.weights.items()):
            trained = ", as it was trained" if kind == reading.kind else ", with the same weights"
            axis.set_title(literal(f"{name}: {kind} graph{trained}"), fontsize=8)
            if shown == "document":
                axis.bar(range(len(weights)), weights[0], color=["0.6"] + ["C0"] * (len(weights) - 1))
                axis.set(xlabel="node", ylabel="attention", ylim=(0, None))
                cells += [[name, kind, node, f"{weight:.5g}"] for node, weight in enumerate(weights[0])]
                continue
            # White where nodes are no neighbours: their weight is exactly 0.
            masked = np.ma.masked_equal(weights, 0)
            picture = axis.imshow(masked, cmap="viridis", interpolation="nearest", vmin=0)
            figure.colorbar(picture, ax=axis, fraction=0.046)
            axis.set(xlabel="attended to", ylabel="node")
            cells += [[name, kind, *place, f"{weight:.5g}"] for place, weight in np.ndenumerate(weights)]
    path = folder / f"graph_attention_{shown}.png"
    if shown == "document":
        caption = "Attention of the document node; node 0, in grey, is itself."
        return save_figure(figure, path, caption, ["encoder", "graph", "node", "attention"], cells)
    header = ["encoder", "graph", "node", "attended to", "attention"]
    return save_figure(figure, path, "Attention of all nodes; white: no neighbours.", header, cells)
