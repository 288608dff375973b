"""The rows of `benchmarks.gpu`: what is measured of each, in how many seconds.

A row reports its lines one by one. What it needs it imports itself, so that the list of rows is there at once.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Line = dict[str, Any]  # of a row: `what` was measured, and its numbers, or why there are none under `failed`
Report = Callable[[Line], None]
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Setting:
    """Where a row is measured.

    Attributes:
        folder: that the row may write into.
        documents: the folder that `--prepare` wrote.
    """

    device: str
    tiny: bool
    folder: Path
    documents: Path

    @property
    def precision(self) -> str:
        """bf16 where the device multiplies it."""
        from benchmarks.speed.meters import native_precision

        return "fp32" if self.tiny else native_precision(self.device)

    def job(self, documents: int, steps: int = 20, model: str = "base", **how: Any) -> Any:
        """Write a model and return the job of a step of it with so many documents; tiny is tiny."""
        from benchmarks.speed import jobs
        from benchmarks.speed.gpu_step import StepJob

        model = "tiny" if self.tiny else model
        if not (self.folder / model).exists():
            jobs.write_model(model, self.folder / model)
        if self.tiny:
            documents, steps, how = 4, 2, how | {"view_tokens": how.get("view_tokens") and 16}
        rounds = 1 if self.tiny else 3
        return StepJob(self.folder / model, self.device, self.precision, documents, steps, rounds, None, **how)


def smoke(setting: Setting, report: Report) -> None:
    """Import what rows import, multiply matrices, and take two tiny steps."""
    from benchmarks.speed import graph_document, long_attention  # noqa: F401
    from benchmarks.speed.gpu_step import OurStep, StStep, TrainerStep, measure_in_turns
    from benchmarks.speed.meters import DTYPES, fastest_product
    from docsplit.embedding.encode import embed_documents  # noqa: F401

    size = 256 if setting.tiny else 8192
    product = fastest_product(size, DTYPES[setting.precision], setting.device, seconds=0.1 if setting.tiny else 1.0)
    report({"what": f"products of matrices of {size:,}", "flops_per_second": product})
    tiny = replace(replace(setting, tiny=True).job(4), precision=setting.precision)
    kinds = {"ours": (OurStep, replace(tiny, packed=True)), "stock Trainer": (TrainerStep, tiny)}
    kinds["sentence-transformers"] = (StStep, replace(tiny, masked_lm=False))

    def only_failures(line: Line) -> None:
        if "failed" in line:
            raise RuntimeError(f"{line['what']}: {line['failed']}")

    measure_in_turns(kinds, only_failures)


def waits(setting: Setting, report: Report) -> None:
    """Run the two tests of the host's waits."""
    test = "tests/scripts/test_waiting.py"
    command = [sys.executable, "-m", "pytest", test, "-m", "gpu", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider"]
    command += ["--collect-only"] if setting.device == "cpu" else []
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    results = 0
    for line in done.stdout.splitlines():
        verdict, _, rest = line.partition(" ")
        name, _, why = rest.partition(" - ")
        if verdict in ("PASSED", "FAILED", "ERROR"):
            said = {"note": "passed"} if verdict == "PASSED" else {"failed": why or verdict.lower()}
            report({"what": name.removeprefix(f"{test}::")} | said)
        elif line.startswith(f"{test}::"):
            report({"what": line.removeprefix(f"{test}::"), "note": "there"})
        else:
            continue
        results += 1
    if not results:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])


def steps(setting: Setting, report: Report, documents: int, count: int, view_tokens: int | None = None) -> None:
    """Measure `count` steps with masked LM and without, beside a stock Trainer and sentence-transformers."""
    from benchmarks.speed.gpu_step import FlashStep, GroupedStep, OurStep, StStep, TrainerStep, measure_in_turns

    joint = setting.job(documents, steps=count, view_tokens=view_tokens)
    alone = replace(joint, masked_lm=False)
    kinds = {
        "ours, packed": (OurStep, replace(joint, packed=True)),
        "ours, padded": (OurStep, joint),
        "stock Trainer, dynamic padding": (TrainerStep, joint),
        **({} if view_tokens else {"stock Trainer, group_by_length": (GroupedStep, joint)}),  # all have one length
        "ours, packed, no masked LM": (OurStep, replace(alone, packed=True)),
        "sentence-transformers, sdpa, no masked LM": (StStep, alone),
        "sentence-transformers, flash attention, no masked LM": (FlashStep, alone),
    }
    measure_in_turns(kinds, report)


def cached(setting: Setting, report: Report) -> None:
    """Measure a step of 1,536 documents, ours and sentence-transformers' with cached gradients."""
    from benchmarks.speed.gpu_step import CachedStStep, OurStep, TrainerStep, measure_in_turns

    joint = replace(setting.job(1536, steps=2), rounds=1 if setting.tiny else 2)
    alone = replace(joint, masked_lm=False)
    ours = {"packed": True, "cache_gradients": True}
    kinds = {
        "ours, packed, cached gradients": (OurStep, replace(joint, **ours)),
        "stock Trainer, dynamic padding": (TrainerStep, joint),
        "ours, packed, cached gradients, no masked LM": (OurStep, replace(alone, **ours)),
        "sentence-transformers, cached gradients, sdpa, no masked LM": (CachedStStep, alone),
    }
    measure_in_turns(kinds, report)


def compiled(setting: Setting, report: Report) -> None:
    """Measure a step of 192 documents, ours packed and a stock Trainer's, compiled and not."""
    from benchmarks.speed.gpu_step import GroupedStep, OurStep, measure_in_turns

    job = setting.job(192, steps=6)
    sides = {
        "ours, packed": (OurStep, replace(job, packed=True)),
        "stock Trainer, group_by_length": (GroupedStep, job),
    }
    kinds = {
        f"{name}{', compiled' * is_compiled}": (kind, replace(of_kind, compile=is_compiled))
        for name, (kind, of_kind) in sides.items()
        for is_compiled in (False, True)
    }
    measure_in_turns(kinds, report)


def budgets(setting: Setting, report: Report) -> None:
    """Measure a packed step of 192 documents in micro-batches of several sizes."""
    from benchmarks.speed.gpu_step import OurStep, measure_in_turns

    job = replace(setting.job(192, steps=6), packed=True)
    tokens = (64, 128) if setting.tiny else (8192, 16_384, 32_768, 65_536)
    kinds = {f"ours, packed, {most:,} tokens": (OurStep, replace(job, micro_batch_tokens=most)) for most in tokens}
    measure_in_turns(kinds, report)


def embedding(setting: Setting, report: Report) -> None:
    """Embed documents of 400 words in the mean, beside SentenceTransformer.encode."""
    import numpy as np
    import torch

    from benchmarks.speed.jobs import MASK, load_sentence_transformer
    from benchmarks.speed.meters import seconds_of
    from docsplit.embedding.encode import embed_documents

    count, words = (40, 20) if setting.tiny else (2000, 400)
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(np.log(words) - 0.08, 0.4, count)).clip(8, 510).astype(int)
    for size in ("minilm", "base"):
        job = setting.job(2, model=size)
        vocabulary = load_sentence_transformer(job)[0].model.config.vocab_size
        texts = [" ".join(f"w{word}" for word in rng.integers(MASK + 1, vocabulary, length)) for length in lengths]
        as_it_comes = load_sentence_transformer(job)
        in_bf16 = load_sentence_transformer(job, dtype=torch.bfloat16)
        ways = {"ours": lambda texts, model=as_it_comes: embed_documents(model, texts)[0]}
        ways["SentenceTransformer.encode, as it comes"] = as_it_comes.encode
        for batch in (32, 128):
            ways[f"SentenceTransformer.encode, bfloat16, batch {batch}"] = lambda texts, batch=batch, model=in_bf16: (
                model.encode(texts, batch_size=batch)
            )
        vectors = {name: np.float32(way(texts[:16])) for name, way in ways.items()}
        lines: dict[str, Line] = {name: {"what": f"{name}, {size}'s size", "documents": count} for name in ways}
        for name in list(ways):
            first, second = vectors["ours"], vectors[name]
            cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
            if cosines.min() < 0.99:
                report(lines[name] | {"failed": f"other vectors than ours: cosine {cosines.min():.3f}"})
                del ways[name]
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(1 if setting.tiny else 3):
            for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
                seconds[name].append(seconds_of(ways[name], texts))
                middle, tokens = statistics.median(seconds[name]), int(lengths.sum()) + 2 * count
                speeds = {"": middle, "_min": max(seconds[name]), "_max": min(seconds[name])}
                per_second = {f"tokens_per_second{end}": tokens / taken for end, taken in speeds.items()}
                report(lines[name] | per_second | {"seconds": middle})


def attention(setting: Setting, report: Report) -> None:
    """Measure forward and backward pass of long documents, beside transformers' own Longformer and others."""
    import torch

    from benchmarks.speed.gpu_step import end_of
    from benchmarks.speed.long_attention import EQUAL, largest_difference, measure

    job = {"model": "base", "length": 4096, "window": 512, "batch_size": 4, "dropout": 0.0, "steps": 3}
    job |= {"model": "tiny", "length": 128, "window": 32, "batch_size": 1, "steps": 1} if setting.tiny else {}
    job |= {"device": setting.device, "precision": setting.precision}
    if not (difference := largest_difference(job)) < EQUAL[setting.precision]:
        raise ValueError(f"the hidden states of the two Longformers differ by {difference:.1e}")
    for name in ("blocked", "longformer", "modernbert", "bert"):
        line: Line = {"what": f"{name}, {job['length']:,} tokens", "documents": job["batch_size"]}
        try:
            measured = min((measure(name, job) for _ in range(2)), key=lambda part: part["seconds"])
        except Exception as error:  # of any library: the others go on
            report(line | {"failed": end_of(error)})
            torch.cuda.empty_cache()
            continue
        speed = int(job["length"]) * int(job["batch_size"]) / measured["seconds"]
        report(line | {"tokens_per_second": speed} | measured)


def graph(setting: Setting, report: Report) -> None:
    """Measure a step of graphs of passages, their encoder of BERT-base's size."""
    import torch

    from benchmarks.speed.graph_document import BASE, ENCODER, measure
    from docsplit.modeling.encoding import default_training_tokens

    device = setting.device
    for documents in (2,) if setting.tiny else (64, 256):
        budget = 4096 if setting.tiny else default_training_tokens(torch.device(device))
        measured = measure(documents, budget, device, ENCODER if setting.tiny else BASE)
        flops = (measured["encoder_flops"] + measured["graph_flops"]) / measured["seconds"]
        speed = {"tokens_per_second": measured["tokens"] / measured["seconds"], "flops_per_second": flops}
        report({"what": "ours, cached gradients", **measured, **speed})


def cudnn(setting: Setting, report: Report) -> None:
    """Measure a padded step with cuDNN's attention last, as docsplit has it, and first, as PyTorch may."""
    from benchmarks.speed.gpu_step import OurStep, TrainerStep, measure_in_turns

    kinds = {}
    for name, kind in (("ours, padded", OurStep), ("stock Trainer, dynamic padding", TrainerStep)):
        kinds[f"{name}, cuDNN last"] = (kind, setting.job(36))
        kinds[f"{name}, cuDNN first"] = (kind, setting.job(36, cudnn_first=True))
    measure_in_turns(kinds, report)


def pretraining(setting: Setting, report: Report) -> None:
    """Pretrain from nothing on prepared documents."""
    from benchmarks.speed import gpu_pretraining

    gpu_pretraining.pretraining(setting, report)


@dataclass(frozen=True)
class Row:
    """A row: what it is about, the seconds that it may take on a GPU, and what measures it."""

    about: str
    seconds: int
    measure: Callable[[Setting, Report], None]


ROWS = {  # in the order of their worth
    "smoke": Row("a bit of everything", 60, smoke),
    "step_36": Row("a step of 36 documents", 90, lambda *given: steps(*given, documents=36, count=20)),
    "step_192": Row("a step of 192 documents", 90, lambda *given: steps(*given, documents=192, count=6)),
    "step_1536": Row("a step of 1,536 documents", 120, cached),
    "embedding": Row("embedding documents of 400 words", 60, embedding),
    "attention": Row("attention to long documents, forward and backward", 60, attention),
    "step_36_full": Row(
        "a step of 36 documents, views of 512 tokens",
        60,
        lambda *given: steps(*given, documents=36, count=8, view_tokens=512),
    ),
    "waits": Row("tests/scripts/test_waiting.py", 90, waits),
    "compiled": Row("a step of 192 documents, compiled", 120, compiled),
    "budgets": Row("a step of 192 documents, by tokens of a micro-batch", 60, budgets),
    "graph": Row("a step of graphs of passages", 60, graph),
    "cudnn": Row("cuDNN's place among kernels of attention", 45, cudnn),
    "pretraining": Row("BERT-base's size from nothing", 240, pretraining),
}
