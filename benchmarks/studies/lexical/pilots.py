"""Does training from token embeddings in closed form end above its start? Eight pilots, named before any was run.

    OMP_NUM_THREADS=1 python -m benchmarks.studies.lexical.pilots

Each pilot is the quickstart (recipes/quickstart.yaml) with one change, and shorter: 25 of the recipe's 70 steps, of
48 documents, so that it takes two minutes of half a thread at most; three seeds. Start and trained encoder read 256
tokens of the 500 validation documents of python_docs, with 5 labels a class and three draws; C is the best of the
probe's three for each. No test document is read.

    LSA                        the table as it was: latent semantic analysis, rate 1e-4
    closed form                its table, rate 1e-4
    rate ten times lower       1e-5
    frozen table               the layers alone, rate 1e-3
    neighbours in a batch      a document and its 47 nearest by the closed form; near copies are no negatives (as CDE)
    masked LM alone            rate 3e-4
    spectral loss              -2 E f(a)'f(b) + E (f(u)'f(v))^2 in place of InfoNCE, of unit vectors times 10^1/2
    neighbour distillation     whole documents to the closed form's vectors, averaged with 20 neighbours; rate 1e-3

All but the first begin with the better of two starts of the closed form: with the recipe's `layer_norm_eps`, which
makes all tokens equally long, or with 1, where they keep their lengths. These are measured first, with the first seed,
and those of LSA beside them.

Changed before any pilot had ended: 25 steps, not 40, for ten processes shared two cores; and the closed form was made
a mean of token vectors meanwhile, centred and with the square of the idf. Four starts of the form before had been
measured, of all three seeds: 64 to 65 % where tokens are equally long and 63 % where not, LSA 69 %.

What decides: a pilot wins if the interval of trained minus its own start lies above 0 (paired bootstrap over documents
and runs; a run is a seed and a draw). If several win, the quickstart is the one that ends highest; if none does, the
quickstart does not train from words. The pilots have 50 minutes together. Each seed of each leaves a file in
--work_dir, so that running again goes on.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sklearn.decomposition import TruncatedSVD
from torch import Tensor, nn
from transformers import BertConfig, get_linear_schedule_with_warmup

from docsplit import DocSplitCollator, DocSplitForContrastivePretraining
from docsplit.data.copies import near_copy_groups
from docsplit.data.corpora import PYTHON_DOCS, for_pretraining, load_corpus
from docsplit.data.preparation import tokenize, without_documents
from docsplit.data.sets.labelled import SHOTS, LabelledSplit, load_probe
from docsplit.data.tokenization import train_wordpiece
from docsplit.embedding import closed_form
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.lexical_ridge import tfidf
from docsplit.embedding.lexical_start import _counts
from docsplit.embedding.neighbours import search, smooth
from docsplit.evaluation.heads.frozen import PROBE_C, tfidf_features
from docsplit.evaluation.heads.logistic import fit_path, in_row_space
from docsplit.evaluation.results.bootstrap import ItemScores, accuracy_items, paired_bootstrap, resample
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.modeling.objectives.base import Objective, ObjectiveOutput
from docsplit.modeling.objectives.neighbour_distillation import Targets
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.runtime.files import cache_directory, read_any_json, write_text
from docsplit.training.documents import measured_on

SEEDS, STEPS, BATCH, DRAWS, WIDTH, LENGTH = (0, 1, 2), 25, 48, 3, 128, 256
OUTPUT = Path("benchmarks/results/lexical_pilots.json")


@dataclass(frozen=True)
class Pilot:
    """What a pilot changes."""

    rate: float = 1e-4
    table: str = "closed form"
    frozen: bool = False
    neighbours: bool = False
    settings: tuple[tuple[str, Any], ...] = ()


PILOTS = {
    "LSA": Pilot(table="LSA"),
    "closed form": Pilot(),
    "rate ten times lower": Pilot(rate=1e-5),
    "frozen table": Pilot(rate=1e-3, frozen=True),
    "neighbours in a batch": Pilot(neighbours=True),
    "masked LM alone": Pilot(rate=3e-4, settings=(("contrastive_weight", 0), ("mlm_weight", 1))),
    "spectral loss": Pilot(settings=(("objective", "spectral"),)),
    "neighbour distillation": Pilot(
        rate=1e-3, settings=(("objective", "neighbour_distillation"), ("mlm_weight", 0), ("view", "simcse"))
    ),
}
STARTS = {  # table, and layer_norm_eps
    "LSA": ("LSA", 1e-12),
    "closed form": ("closed form", 1e-12),
    "closed form, lengths": ("closed form", 1.0),
    "LSA, lengths": ("LSA", 1.0),
}


class Spectral(Objective):
    """The contrastive loss in its spectral form (HaoChen et al. 2021), of unit vectors times 10^1/2."""

    @dataclass
    class Options:
        """None."""

    def forward(self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]) -> ObjectiveOutput:
        """Compare the documents of a batch, as `Objective.forward`; one process."""
        first, second = (10**0.5 * nn.functional.normalize(embeddings, dim=-1)).unbind(1)  # (B, H) each
        products = first @ second.T  # (B, B)
        others = ~torch.eye(len(products), dtype=torch.bool)
        return ObjectiveOutput(-2 * products.diagonal().mean() + products[others].square().mean())


OBJECTIVES["spectral"] = Spectral


class Data:
    """Documents to train on and to measure on, and what their words give."""

    def __init__(self) -> None:
        corpus = for_pretraining(PYTHON_DOCS, load_corpus(PYTHON_DOCS))
        self.split: LabelledSplit = load_probe(PYTHON_DOCS)
        self.tokenizer = train_wordpiece(corpus, "text", 8192, cache_directory())
        self.documents: Dataset = without_documents(tokenize(corpus, self.tokenizer)[0], measured_on(self.split))[0]
        self.counts = _counts(self.documents, len(self.tokenizer), self.tokenizer.all_special_ids)
        self.form = closed_form.fit(self.counts, width=WIDTH)
        self.vectors = self.form.vectors(self.counts)
        self.draws = self.split.draws(SHOTS, DRAWS)
        self.labelled = np.unique(np.concatenate(self.draws))  # training documents that a draw has

    def tables(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return tokens, (P,), and their vectors, (P, H), of each table; scaled to a root mean square of 0.2."""
        features, tokens, weigher = tfidf(self.counts)
        svd = TruncatedSVD(WIDTH, random_state=0).fit(features)
        tables = {
            "LSA": (tokens, weigher.idf_[:, None] * svd.components_.T * svd.singular_values_),
            "closed form": (self.form.tokens, self.form.table),
        }
        return {
            name: (tokens, (table * (0.2 / np.sqrt(np.square(table).mean()))).astype(np.float32))
            for name, (tokens, table) in tables.items()
        }

    def right(self, train: Any, validation: Any, rows: np.ndarray | None = None) -> np.ndarray:
        """Return which validation documents a head finds, of each draw, (R, M): by the best C in the mean of draws.

        Args:
            train: features of the training documents `rows`; None: of all.
        """
        found = []
        for draw in self.draws:
            few, others = in_row_space(train[draw if rows is None else np.searchsorted(rows, draw)], validation)
            heads = fit_path(few, self.split.train_labels[draw], len(self.split.class_names), PROBE_C)
            found.append([(others @ weights + bias).argmax(axis=1) for weights, bias in heads])
        right = np.array(found) == self.split.validation_labels  # (R, C, M)
        return right[:, right.mean(axis=(0, 2)).argmax()]

    def measure(self, model: Any) -> np.ndarray:
        """Return `right` of an encoder."""
        texts = [self.split.train_texts[row] for row in self.labelled]
        features, _ = embed_documents(model.body, [*texts, *(self.split.validation_texts or [])], dtype=torch.float32)
        return self.right(features[: len(texts)], features[len(texts) :], self.labelled)


def new_model(data: Data, table: tuple[np.ndarray, np.ndarray], eps: float, seed: int, **settings: Any) -> Any:
    """Make the quickstart's encoder with these token embeddings."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    }
    dropout: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    ids = {"vocab_size": len(data.tokenizer), "pad_token_id": data.tokenizer.pad_token_id}
    config = BertConfig(**sizes, **dropout, **ids, layer_norm_eps=eps)
    model = DocSplitForContrastivePretraining.from_config(
        config, data.tokenizer, pooling="mean", max_seq_length=LENGTH, **settings
    )
    embeddings = model.body[0].model.embeddings
    with torch.no_grad():
        embeddings.position_embeddings.weight *= 0.1
        embeddings.token_type_embeddings.weight *= 0.1
        embeddings.word_embeddings.weight[torch.from_numpy(table[0])] = torch.from_numpy(table[1])
    return model


def batches(data: Data, pilot: Pilot, seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the documents of each step: at random, or near each other with one id for near copies."""
    rows, generator = data.documents.with_format("numpy"), np.random.default_rng(seed)
    if not pilot.neighbours:
        for chosen in generator.permutation(len(rows))[: STEPS * BATCH].reshape(STEPS, BATCH):
            yield [rows[int(row)] for row in chosen]
        return
    first = generator.choice(len(rows), STEPS, replace=False)
    for near in search(data.vectors[first], data.vectors, BATCH).rows:
        features = [rows[int(row)] for row in near]
        texts = data.tokenizer.batch_decode([feature["input_ids"] for feature in features])
        for feature, group in zip(features, near_copy_groups(texts)):
            feature["document_id"] = np.int64(group)
        yield features


def train(model: Any, data: Data, pilot: Pilot, seed: int, folder: Path) -> None:
    """Train as the Trainer would: AdamW, a rate that falls to zero, gradients clipped to length one."""
    collator = DocSplitCollator.for_model(model, data.tokenizer, max_seq_length=128, seed=seed)
    model.body.max_seq_length = LENGTH
    collator.epoch.value = 0
    if pilot.frozen:
        model.get_input_embeddings().weight.requires_grad_(False)
    if model.config.docsplit["objective"] == "neighbour_distillation":
        path, ids = folder / "targets.safetensors", data.documents.with_format("numpy")["document_id"][:]
        if not path.exists():
            Targets.write(path, torch.from_numpy(np.asarray(ids)), torch.from_numpy(smooth(data.vectors)), {})
        model.objective.targets = Targets(path)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, pilot.rate, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    model.train()
    for features in batches(data, pilot, seed):
        loss = model(**collator(features)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def scores(right: list[Any]) -> ItemScores:
    """Join what was found of all seeds."""
    found = np.concatenate([np.asarray(one) for one in right]).astype(int)
    return accuracy_items(found, np.ones(found.shape[1], dtype=int))


def report(work_dir: Path, beside: dict[str, float]) -> None:
    """Write the figures and a table of all that has been run."""
    rows: list[dict[str, Any]] = []
    for name in STARTS:
        parts = [read_any_json(path) for path in sorted(work_dir.glob(f"start-{name}-?.json"))]
        if parts:
            start = scores([part["start"] for part in parts]).of_runs().mean()
            rows.append({"row": f"no training: {name}", "seeds": len(parts), "start": round(float(start), 4)})
    for name in PILOTS:
        parts = [read_any_json(path) for path in sorted(work_dir.glob(f"pilot-{name}-?.json"))]
        if parts:
            both = [scores([part[side] for part in parts]) for side in ("trained", "start")]
            trained, start = resample(both)
            found = paired_bootstrap(trained, start)
            values = [start.scores.mean(), trained.scores.mean(), found.difference, found.low, found.high]
            names = ["start", "trained", "difference", "low", "high"]
            of_row: dict[str, Any] = {
                "row": name,
                "seeds": len(parts),
                "seconds": round(sum(part["seconds"] for part in parts)),
            }
            rows.append(of_row | {key: round(float(value), 4) for key, value in zip(names, values)})
    figures: dict[str, Any] = {"about": __doc__.splitlines()[0], "steps": STEPS, "beside": beside, "rows": rows}
    write_text(OUTPUT, json.dumps(figures, indent=1) + "\n")
    body = [[name, "", f"{100 * value:.1f}", ""] for name, value in beside.items()]
    for row in rows:
        values = [f"{100 * row[key]:.1f}" if key in row else "" for key in ("start", "trained")]
        low, high = (100 * row.get(key, 0) for key in ("low", "high"))
        difference = f"{100 * row['difference']:+.1f} [{low:.1f}, {high:.1f}]" if "low" in row else ""
        body.append([row["row"], *values, difference])
    title = f"python_docs, validation documents, 5 labels a class; {STEPS} steps"
    table = markdown_table([title, "start", "after training", "difference, 95 % interval"], body)
    write_text(
        OUTPUT.with_suffix(".md"),
        f"{table}\n\nPercent; means of three seeds (of starts: where there are) and three draws of labels.\n",
    )


def main() -> None:
    """Run what is not there yet, seed by seed, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/lexical_pilots"))
    parser.add_argument("--minutes", type=float, default=50)
    options = parser.parse_args()
    folder: Path = options.work_dir
    folder.mkdir(parents=True, exist_ok=True)
    data = Data()
    tables = data.tables()
    split, known = data.split, data.form.vectors
    beside = {"TF-IDF": data.right(*tfidf_features(split.train_texts, split.validation_texts or [])).mean()}
    tokenized = [
        data.tokenizer(texts, add_special_tokens=False, truncation=True, max_length=LENGTH - 2)["input_ids"]
        for texts in (split.train_texts, split.validation_texts or [])
    ]
    counted = [_counts(Dataset.from_dict({"input_ids": ids}), len(data.tokenizer), []) for ids in tokenized]
    beside["the closed form itself"] = data.right(*map(known, counted)).mean()
    beside = {name: round(float(value), 4) for name, value in beside.items()}
    began = time.perf_counter()

    def start_of(name: str, seed: int) -> list[list[int]]:
        path, (table, eps) = folder / f"start-{name}-{seed}.json", STARTS[name]
        if not path.exists():
            found = data.measure(new_model(data, tables[table], eps, seed))
            write_text(path, json.dumps({"start": found.astype(int).tolist()}))
            print(f"{path.stem}: {found.mean():.3f}", flush=True)
        return read_any_json(path)["start"]

    means = {name: np.mean(start_of(name, SEEDS[0])) for name in STARTS}
    report(folder, beside)
    best = max(("closed form", "closed form, lengths"), key=lambda name: means[name])
    for seed, (name, pilot) in product(SEEDS, PILOTS.items()):
        path = folder / f"pilot-{name}-{seed}.json"
        if path.exists() or time.perf_counter() - began > 60 * options.minutes:
            continue
        start = "LSA" if pilot.table == "LSA" else best
        before = start_of(start, seed)
        table, eps = STARTS[start]
        model = new_model(data, tables[table], eps, seed, **{"mlm_weight": 0.1} | dict(pilot.settings))
        begun = time.perf_counter()
        train(model, data, pilot, seed, folder)
        seconds = time.perf_counter() - begun
        found = data.measure(model)
        content = {"start": before, "trained": found.astype(int).tolist(), "seconds": seconds}
        write_text(path, json.dumps(content))
        print(f"{path.stem}: {np.mean(before):.3f} to {found.mean():.3f}, {seconds:.0f} s", flush=True)
        report(folder, beside)


if __name__ == "__main__":
    main()
