"""What a run shows: the table, the plot, `all_results.json` and the README.md of the checkpoint."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen needed; before pyplot is imported
import matplotlib.pyplot as plt
from huggingface_hub import ModelCard, ModelCardData

README = """{metadata}
# {name}

A document encoder pretrained by contrasting two views of each document (DocSplit).

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{path}")
embeddings = model.encode(["A long document ...", "Another one ..."])  # (2, {hidden_size})
```

`AutoModel.from_pretrained` loads the encoder too; its embedding is the `{pooling}` of the last hidden states of the
first {max_seq_length} tokens.

## Training

{training}

## Probe

{probe}

![Loss and probe accuracy during training](training.png)
"""


def write_results(output_dir: Path, results: dict[str, Any], log_history: list[dict[str, float]], config: Any) -> None:
    """Write all_results.json, training.png and README.md beside the checkpoint, and print the table."""
    (output_dir / "all_results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    plot_training(log_history, results, output_dir / "training.png")
    write_readme(output_dir, results, config)
    print(f"\n{probe_table(results)}\n")
    print(f"Checkpoint, plot and results are in {output_dir}: SentenceTransformer({str(output_dir)!r}) loads it.")


def probe_table(results: dict[str, Any]) -> str:
    """A Markdown table of the probe: random start, after pretraining, TF-IDF."""
    if "probe_after_accuracy" not in results:
        return "No probe was asked for (--probe_corpus)."
    rows = [("before pretraining", "probe_before"), ("after pretraining", "probe_after"), ("TF-IDF", "tfidf")]
    lines = ["| logistic regression on | 5 labels a class | all labels |", "|---|---|---|"]
    for name, prefix in rows:
        few, spread = results[f"{prefix}_5shot_accuracy"], results[f"{prefix}_5shot_accuracy_std"]
        lines.append(f"| {name:<22} | {few:.3f} ± {spread:.3f} | {results[f'{prefix}_accuracy']:.3f} |")
    note = (
        f"Accuracy over {results['probe_classes']} classes, {results['probe_test_documents']:,} test documents; "
        "± is the standard deviation over 10 draws of the labels."
    )
    return "\n".join([*lines, "", note])


def plot_training(log_history: list[dict[str, float]], results: dict[str, Any], path: Path) -> None:
    """Loss parts over steps and, where measured, probe accuracy beside TF-IDF, as PNG."""
    probed = [entry for entry in log_history if "probe_accuracy" in entry]
    figure, axes = plt.subplots(1, 2 if probed else 1, figsize=(10 if probed else 5.5, 3.8), squeeze=False)
    losses = axes[0, 0]
    for name, label in (("contrastive_loss", "contrastive (InfoNCE)"), ("mlm_loss", "masked LM")):
        points = [(entry["step"], entry[name]) for entry in log_history if name in entry]
        if points:
            losses.plot(*zip(*points), label=label)
    losses.set(xlabel="step", ylabel="loss", title="Training loss", ylim=(0, None))
    losses.legend()
    if probed:
        axis = axes[0, 1]
        for name, label, color in (("5shot_accuracy", "5 labels a class", "C2"), ("accuracy", "all labels", "C3")):
            spreads = [entry.get(f"probe_{name}_std", 0.0) for entry in probed]
            axis.errorbar(
                [entry["step"] for entry in probed],
                [entry[f"probe_{name}"] for entry in probed],
                yerr=spreads if any(spreads) else None,
                fmt="o-",
                capsize=3,
                color=color,
                label=f"{label} (± std over draws)" if any(spreads) else label,
            )
            if f"tfidf_{name}" in results:
                axis.axhline(results[f"tfidf_{name}"], color=color, linestyle=":", label=f"TF-IDF, {label}")
        axis.set(xlabel="step", ylabel="accuracy", title="Probe of the frozen encoder", ylim=(0, 1))
        axis.legend(fontsize="small", loc="lower right")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write_readme(output_dir: Path, results: dict[str, Any], config: Any) -> None:
    """A short card with what was measured in this run, and nothing else."""
    metadata = ModelCardData(
        library_name="sentence-transformers", tags=["docsplit", "feature-extraction", "sentence-similarity"]
    )
    facts = {
        "documents used": f"{results['documents_used']:,}",
        "documents dropped": f"{results['documents_dropped']:,}",
    }
    if "documents_truncated_share" in results:  # not known of a stream
        facts |= {
            "documents with a truncated view": f"{results['documents_truncated_share']:.1%}",
            "tokens lost by truncation": f"{results['tokens_truncated_share']:.1%}",
        }
    facts |= {
        "steps": f"{results['global_step']:,}",
        "tokens seen": f"{results['train_tokens']:,}",
        "seconds": f"{results['train_runtime']:.0f}",
        "tokens a second": f"{results['train_tokens_per_second']:,.0f}",
        **{f"setting {name}": value for name, value in config.docsplit.items()},
    }
    content = README.format(
        metadata=f"---\n{metadata.to_yaml()}\n---",
        name=output_dir.name,
        path=output_dir,
        hidden_size=config.hidden_size,
        pooling=config.docsplit["pooling"],
        max_seq_length=config.docsplit["max_seq_length"],
        training="\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]),
        probe=probe_table(results),
    )
    ModelCard(content).save(output_dir / "README.md")
