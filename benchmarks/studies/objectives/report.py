"""Compare views and objectives: one start, as many steps and tokens, the same probes for all.

    python -m benchmarks.studies.objectives.report --corpus wikipedia/train.parquet \\
        --probe_options "--train_file 20newsgroups/train.parquet --test_file 20newsgroups/test.parquet" \\
        --retrieval_options "--papers_file papers.parquet --train_pairs_file train.tsv --validation_pairs_file ..."

Trains a small encoder from random weights for each row of `ROWS` and each seed with `run_docsplit_pretraining.py`,
then runs `run_probe_classification.py` and `run_aan_retrieval.py` on it. Rows of a seed start from the same weights.
A view of one row is longer than that of another, so documents a step are chosen such that each row reads as many
tokens of views in as many steps. `LENGTHS` is for long documents: one encoder trained on views of up to 4,096 tokens,
which then reads less or more of each paper.

Without options the data are `python_docs`. What is finished is kept in --work_dir, and running again goes on from
there. Each CPU core does one training at a time (Linux); with a GPU give --jobs 1.
"""

import argparse
import json
import os
import queue
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from benchmarks.engine.results import write_report
from docsplit.data import corpora, preparation
from docsplit.data.collators import DocSplitCollator
from docsplit.data.tokenization import train_wordpiece
from docsplit.data.views import OF_PASSAGES
from docsplit.runtime.files import versions, write_text
from docsplit.runtime.launching import hardware

ROOT = Path(__file__).parents[3]
MAX_SEQ_LENGTH, LONGEST = 128, 4096
VOCABULARY = 8192
DOCUMENTS_FOR_LENGTHS = 2000

PASSAGE_WORDS = 50  # of 100 words, three docstrings of ten have one passage, and would be dropped

NO_MLM = ["--mlm_weight", "0"]
NO_MLM_PASSAGES = ["--passage_words", str(PASSAGE_WORDS), *NO_MLM]
ROWS = {
    "random start": ["--max_steps", "1", "--learning_rate", "0"],
    "MLM alone": ["--view", "simcse", "--contrastive_weight", "0", "--mlm_weight", "1"],
    "SimCSE_long": ["--view", "simcse"],
    "DocSplit": ["--view", "docsplit"],
    "docsplit, no MLM": ["--view", "docsplit", *NO_MLM],
    "simcse, no MLM": ["--view", "simcse", *NO_MLM],
    "crop, no MLM": ["--view", "crop", *NO_MLM],
    "ict, no MLM": ["--view", "ict", *NO_MLM],
    "half, no MLM": ["--view", "half", *NO_MLM],
    "passages, no MLM": ["--view", "passages", *NO_MLM_PASSAGES],
    "passage_vs_rest, no MLM": ["--view", "passage_vs_rest", *NO_MLM_PASSAGES],
    "Contrastive Tension": ["--view", "simcse", "--objective", "contrastive_tension", *NO_MLM],
    "crop, MoCo queue, no MLM": [
        "--view",
        "crop",
        "--objective",
        "momentum_contrast",
        "--momentum_queue_size",
        "4096",
        "--momentum",
        "0.99",
        *NO_MLM,
    ],
}
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
BERT = SMALL | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0}
MODERNBERT = SMALL | {"intermediate_size": 256, "num_attention_heads": 2, "max_position_embeddings": LONGEST}
LENGTHS = {
    "the first 512": ["--max_seq_length", "512"],
    "the first 2,048": ["--max_seq_length", "2048"],
    "the first 4,096": ["--max_seq_length", "4096"],
    "all, the mean of pieces of 512": ["--max_seq_length", "512", "--long_documents", "chunk_mean"],
}
MEASURES = {  # title: (file, head, labels a class, measure)
    "5 labels": ("probe", "mlp", 5, "accuracy"),
    "10 labels": ("probe", "mlp", 10, "accuracy"),
    "20 labels": ("probe", "mlp", 20, "accuracy"),
    "all labels": ("probe", "mlp", None, "accuracy"),
    "links, MLP": ("retrieval", "mlp", None, "accuracy"),
    "links, cosine": ("retrieval", "cosine", None, "accuracy"),
    "links, cosine, ROC-AUC": ("retrieval", "cosine", None, "roc_auc"),
}


def run_script(script: str, log: Path, *options: object) -> None:
    """Run one of the top-level scripts in a new process.

    Raises:
        RuntimeError: if it fails, naming its log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        command = [sys.executable, ROOT / script, *map(str, options)]
        if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT).returncode:
            raise RuntimeError(f"{script} failed: see {log}.")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows that a probing or retrieval script wrote there."""
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"]


def documents_a_step(corpus_name: str, tokens: int) -> dict[tuple[str, int], int]:
    """Map (view, longest view) to the documents a step whose views have so many tokens together, on average."""
    corpus = corpora.add_text(corpora.load_corpus(corpus_name), "text")
    tokenizer = train_wordpiece(corpus, "text", VOCABULARY, corpora.cache_directory())
    features = {}
    for words in (None, PASSAGE_WORDS):
        dataset, _ = preparation.tokenize(
            corpus, tokenizer, preparation.Segmentation(passage_words=words), os.cpu_count()
        )
        sample = dataset.shuffle(seed=0).select(range(min(DOCUMENTS_FOR_LENGTHS, len(dataset))))
        features[words] = [sample[row] for row in range(len(sample))]
    views = {options[options.index("--view") + 1] for options in ROWS.values() if "--view" in options}
    counts = {}
    for view, longest in [*((view, MAX_SEQ_LENGTH) for view in sorted(views)), ("docsplit", LONGEST)]:
        tokenized = features[PASSAGE_WORDS if view in OF_PASSAGES else None]
        batch = DocSplitCollator(tokenizer, view, longest, mlm=False)(tokenized)
        counts[view, longest] = max(round(tokens * len(tokenized) / int(batch["attention_mask"].sum())), 2)
    return counts


class Study:
    """Encoders and their results under a folder, each made once.

    Args:
        options: of the command line.
        documents: what `documents_a_step` returns.
    """

    def __init__(self, options: argparse.Namespace, documents: dict[tuple[str, int], int]):
        self.options = options
        self.documents = documents

    def folder(self, name: str, seed: int) -> Path:
        """Return the folder of the encoder of a row and a seed, and of its results."""
        plain = "".join(letter if letter.isalnum() else "_" for letter in name)
        return self.options.work_dir / f"{plain}-{seed}"

    def pretrain(self, name: str, seed: int, model: list[str], longest: int, options: list[str]) -> Path:
        """Return the folder of an encoder, trained unless it is there."""
        folder = self.folder(name, seed)
        if not (folder / "all_results.json").exists():
            view = options[options.index("--view") + 1] if "--view" in options else "docsplit"
            run_script(
                "run_docsplit_pretraining.py", folder / "pretraining.log",
                "--corpus", self.options.corpus, "--output_dir", folder, "--seed", seed, *model,
                "--vocab_size", VOCABULARY, "--pooling", "mean", "--max_seq_length", longest,
                "--max_steps", self.options.steps, "--learning_rate", self.options.learning_rate,
                "--per_device_train_batch_size", self.documents[view, longest], "--num_train_epochs", "100",
                "--logging_steps", "10", "--save_strategy", "no", "--overwrite_output_dir", "--disable_tqdm", *options,
            )  # fmt: skip
        return folder

    def probe(self, encoder: Path | str, output_dir: Path) -> None:
        """Probe the frozen encoder with few labels and with all of them."""
        if not (output_dir / "results.json").exists():
            run_script(
                "run_probe_classification.py", output_dir / "log.txt",
                "--model_name_or_path", encoder, "--output_dir", output_dir, "--max_seq_length", MAX_SEQ_LENGTH,
                "--heads", "linear" if encoder == "tfidf" else "mlp", "--shots", "5", "10", "20", "--num_seeds", "1",
                *shlex.split(self.options.probe_options),
            )  # fmt: skip

    def retrieve(self, encoder: Path, output_dir: Path, reading: list[str]) -> None:
        """Measure links of papers; `reading` are the options that say how much of a paper is read."""
        if not (output_dir / "results.json").exists():
            run_script(
                "run_aan_retrieval.py", output_dir / "log.txt",
                "--model_name_or_path", encoder, "--output_dir", output_dir, "--num_seeds", "1", *reading,
                *shlex.split(self.options.retrieval_options),
            )  # fmt: skip

    def do_row(self, name: str, seed: int) -> None:
        """Train and measure one row with one seed."""
        model = ["--config_overrides", ",".join(f"{key}={value}" for key, value in BERT.items())]
        encoder = self.pretrain(name, seed, model, MAX_SEQ_LENGTH, ROWS[name])
        self.probe(encoder, encoder / "probe")
        self.retrieve(encoder, encoder / "retrieval", ["--max_seq_length", str(MAX_SEQ_LENGTH)])

    def do_lengths(self, seed: int) -> None:
        """Train one encoder on long views, and let it read more and more of the papers."""
        overrides = ",".join(f"{key}={value}" for key, value in MODERNBERT.items())
        model = ["--model_type", "modernbert", "--config_overrides", overrides]
        encoder = self.pretrain("long", seed, model, LONGEST, ["--view", "docsplit"])
        for name, reading in LENGTHS.items():
            self.retrieve(encoder, self.folder(name, seed), reading)

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the mean and standard deviation over seeds of each measure and each row that has all seeds."""

        def summary(titles: list[str], folders: list[dict[str, Path]]) -> Iterator[tuple[str, dict[str, float]]]:
            for title in titles:
                file, head, shots, measure = MEASURES[title]
                values = [
                    row[f"{measure}_mean"]
                    for folder in folders
                    for row in rows_of(folder[file])
                    if (row["head"], row["shots"], row["features"]) == (head, shots, "raw")
                ]
                yield title, {"mean": statistics.mean(values), "std": statistics.stdev(values), "values": values}

        objectives, lengths, seeds = [], [], self.options.seeds
        for name in ROWS:
            folders = [self.folder(name, seed) for seed in seeds]
            runs = [json.loads((folder / "all_results.json").read_text(encoding="utf-8")) for folder in folders]
            parts = [{"probe": folder / "probe", "retrieval": folder / "retrieval"} for folder in folders]
            view = ROWS[name][1] if ROWS[name][0] == "--view" else None
            objectives.append(
                {
                    "row": name,
                    "documents_a_step": self.documents[view, MAX_SEQ_LENGTH] if view else 0,
                    "tokens": statistics.mean(run["train_tokens"] for run in runs) if view else 0,
                    "measures": dict(summary(list(MEASURES), parts)),
                }
            )
        links = [title for title, (file, *_) in MEASURES.items() if file == "retrieval"]
        for name in LENGTHS:
            parts = [{"retrieval": self.folder(name, seed)} for seed in seeds]
            lengths.append({"row": name, "measures": dict(summary(links, parts))})
        return {"objectives": objectives, "lengths": lengths}

    def references(self) -> list[dict[str, Any]]:
        """Return the rows of methods without an encoder: TF-IDF, BM25 and popularity."""
        rows = rows_of(self.folder("tfidf", 0)) + rows_of(self.folder("the first 512", self.options.seeds[0]))
        return [row for row in rows if row["head"] in ("bm25", "popularity") or row["encoder"] == "tfidf"]


def percent(measured: dict[str, float]) -> str:
    """Return a share as 35.0 ± 7.1, in percent."""
    return f"{100 * measured['mean']:.1f} ± {100 * measured['std']:.1f}"


def markdown(results: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    lines = [
        f"{results['hardware']}; {results['steps']} steps, peak learning rate {results['learning_rate']:g}; ± is the "
        f"standard deviation over {len(results['seeds'])} pretraining seeds; percent",
    ]
    for table, extra in {"objectives": ["documents a step", "million tokens"], "lengths": []}.items():
        titles = list(results[table][0]["measures"])
        lines += ["", f"**{table}**", "", f"| | {' | '.join([*extra, *titles])} |"]
        lines += ["|---|" + "---|" * (len(extra) + len(titles))]
        for row in results[table]:
            cells = [str(row["documents_a_step"]), f"{row['tokens'] / 1e6:.2f}"] if extra else []
            cells += [percent(row["measures"][title]) for title in titles]
            lines.append(f"| {row['row']} | {' | '.join(cells)} |")
    lines += ["", "**without an encoder**", "", "| | head | labels | accuracy |", "|---|---|---|---|"]
    for row in results["references"]:
        shots = "all" if row["shots"] is None else row["shots"]
        lines.append(f"| {row['encoder']} | {row['head']} | {shots} | {100 * row['accuracy_mean']:.1f} |")
    return "\n".join(lines) + "\n"


def plot(results: dict[str, Any], path: Path) -> None:
    """Plot each seed as a dot and their mean as a line."""
    import matplotlib.pyplot as plt

    titles = {"5 labels": "5 labels a class", "all labels": "all labels", "links, MLP": "links"}
    rows = results["objectives"][::-1]
    figure, axes = plt.subplots(1, len(titles), figsize=(11, 4.8), sharey=True)
    for axis, (title, label) in zip(axes, titles.items()):
        for height, row in enumerate(rows):
            measured = row["measures"][title]
            values = [100 * value for value in measured["values"]]
            axis.plot(values, [height] * len(values), "o", color="tab:blue", alpha=0.5)
            axis.plot([100 * measured["mean"]] * 2, [height - 0.3, height + 0.3], color="black")
        axis.set(xlabel=f"{label}, accuracy in percent", xlim=(0, None) if title != "links, MLP" else None)
        axis.grid(alpha=0.3)
    axes[0].set_yticks(range(len(rows)), [row["row"] for row in rows])
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train and measure every row with every seed, as many at a time as there are jobs, then write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="python_docs", help="corpus, named as in run_docsplit_pretraining.py")
    parser.add_argument("--probe_options", default="", help="labelled data, for run_probe_classification.py")
    parser.add_argument("--retrieval_options", default="", help="papers and pairs, for run_aan_retrieval.py")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument(
        "--tokens_a_step", type=int, default=12_500, help="tokens of all views of a step (default: 12500)"
    )
    parser.add_argument(
        "--learning_rate", type=float, default=2e-3, help="peak learning rate of all rows (default: 0.002)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, help="trainings at a time (default: one a core)")
    parser.add_argument(
        "--work_dir", type=Path, default=Path("outputs/objectives"), help="folder for encoders and logs"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("benchmarks/results/objectives.json"),
        help="JSON file to write, with a table and a plot beside it",
    )
    options = parser.parse_args()
    options.work_dir = options.work_dir.resolve()
    if len(options.seeds) < 2:
        parser.error("--seeds needs two or more, for a spread.")

    settings = {
        name: value for name, value in vars(options).items() if name not in ("work_dir", "output", "jobs", "seeds")
    }
    record = options.work_dir / "settings.json"
    if record.exists() and json.loads(record.read_text(encoding="utf-8")) != settings:
        parser.error(f"{options.work_dir} has results of other settings: give another --work_dir.")
    options.work_dir.mkdir(parents=True, exist_ok=True)
    write_text(record, json.dumps(settings))

    study = Study(options, documents_a_step(options.corpus, options.tokens_a_step))
    cores = sorted(os.sched_getaffinity(0))
    free: queue.Queue[set[int]] = queue.Queue()
    jobs = options.jobs or len(cores)
    for job in range(jobs):
        free.put(set(cores[job::jobs]) or set(cores))
    with ThreadPoolExecutor(jobs, initializer=lambda: os.sched_setaffinity(0, free.get())) as pool:
        work = [pool.submit(study.probe, "tfidf", study.folder("tfidf", 0))]
        for seed in options.seeds:
            work += [pool.submit(study.do_row, name, seed) for name in ROWS]
            work.append(pool.submit(study.do_lengths, seed))
        try:
            for future in tqdm(work, desc="Rows x seeds", unit="encoder"):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise

    results = {
        "hardware": hardware("cuda" if torch.cuda.is_available() else "cpu"),
        "versions": versions(),
        **{name: getattr(options, name) for name in ("steps", "tokens_a_step", "learning_rate", "seeds")},
        **study.tables(),
        "references": study.references(),
    }
    text = markdown(results)
    write_report(options.output, results, text)
    plot(results, options.output.with_suffix(".png"))
    print(f"\n{text}\nWritten: {options.output}")


if __name__ == "__main__":
    main()
