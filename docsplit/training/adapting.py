"""Adapt an encoder to documents without labels: one call, from a name and texts to a folder that can be loaded.

    adapt("sentence-transformers/all-MiniLM-L6-v2", "notes/", "outputs/mine")
    adapt("none", "notes/", "outputs/from_nothing")    # an encoder of these documents alone

load     encoder and documents; whatever can fail early does
embed    the documents, and labelled ones if there are any
train    the encoder, with `train`: neighbour distillation in a process of its own
fit      words to the vectors of the encoder, in closed form (`docsplit.embedding.lexical_ridge`)
choose   among all candidates, by cross-validation on labelled documents
write    the folder, whole or not at all

What could be written:

    start      the plain encoder                   trained    the same after neighbour distillation
    words      the encoder and words, of the weight that the fit gives (at most 1), half and twice that
    static     words alone, fitted with plain counts, for their vector is a mean of token vectors

With several processes (`torch.distributed`) all embed; the first one does the rest.

From nothing there is nothing to load, embed, train or choose: `docsplit.embedding.closed_form`.
"""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from docsplit.data.copies import document_id, near_copy_groups, sketch
from docsplit.data.corpora import EXPECTED_CORPUS, add_text, for_pretraining, load_corpus
from docsplit.data.readers.base import normalized
from docsplit.data.readers.documents import Documents, documents_of
from docsplit.data.seen_documents import MOST_SKETCHES, TrainingDocuments, training_documents_of
from docsplit.data.sets.labelled import SHOTS, LabelledSplit, folds_of, load_probe, some
from docsplit.embedding import closed_form, lexical_ridge
from docsplit.embedding.encode import embed_documents, reading_of
from docsplit.embedding.lexical_ridge import FEWEST_DOCUMENTS, LexicalRidge, RidgeFacts, RidgeSettings, distinct
from docsplit.evaluation.heads.frozen import probe_accuracy
from docsplit.evaluation.results.data_names import without_folders
from docsplit.modeling.encoder_with_words import Words, add_words
from docsplit.modeling.loading import has_words, load_encoder, reader_config, save_plain, without_words, words_of
from docsplit.release.hub import RELEASE, prepare_release, push_at_the_end
from docsplit.release.model_card import PROBE_MEASURES, candidates_table, write_card
from docsplit.release.records import CLOSED_FORM, Adaptation, Candidate, StartRecord, label_of, start_of
from docsplit.runtime.bounds import check_bounds
from docsplit.runtime.files import (
    PARTIAL,
    ROOT,
    cache_directory,
    commit_of_code,
    flush,
    flush_folder,
    refuse_missing_path,
    versions,
    why_not_written,
)
from docsplit.runtime.launching import default_dtype, describe_computing, hardware
from docsplit.runtime.plugins import loaded_plugin
from docsplit.runtime.sharing import LOCK, RECORD, OutputFolder, from_first, on_all, refuse_used
from docsplit.training.adapt_options import AdaptOptions
from docsplit.training.documents import measured_on
from docsplit.training.probe import folder_of, put_back
from docsplit.training.screen import use_of

logger = logging.getLogger(__name__)

FOR_NOTHING = ("text_column", "encoding", "push_to_hub", "hub_model_id", "hub_private_repo")  # options
FACTORS = (1.0, 0.5, 2.0)  # of the weight that the fit gives; where several are as good, the first
ADAPT_FOLDS = 3  # of the labelled documents
TEXTS_PER_CHUNK = 1024
NAMES = {  # of what could be written: that of the encoder, and the kind
    ("start", "plain"): "start",
    ("start", "words"): "words",
    ("start", "static"): "static",
    ("trained", "plain"): "trained",
    ("trained", "words"): "trained + words",
    ("trained", "static"): "static of trained",
}
# What tells a process of its launcher; a training of one process is not to know.
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Adapted:
    """What came out of adapting an encoder.

    Attributes:
        output: the folder, which SentenceTransformer loads.
        kept: what is in it: start, words, static, trained, trained + words, static of trained or closed form.
        weight: of the words beside the encoder; None without words, and for words alone.
        facts: of the words that are kept, else of those that were tried; None where none could be fitted.
        candidates: what was measured on labelled documents, if there were any.
        seconds: of each step.

    Example:
        >>> from docsplit import adapt
        >>> adapted = adapt("sentence-transformers/all-MiniLM-L6-v2", "python_docs", "outputs/words")
        >>> adapted.kept, adapted.output.name
        ('words', 'words')
    """

    output: Path
    kept: str
    weight: float | None = None
    facts: RidgeFacts | None = None
    candidates: list[Candidate] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Side:
    """An encoder, its vectors, and the words that were fitted to it.

    Attributes:
        name: start, or trained.
        place: that it was loaded from.
        model: the plain SentenceTransformer.
        vectors: of the documents, (N, H).
        probe: for each part of the labelled documents its vectors (M, H).
        device: that embedded them.
        ridges: words that were fitted, by the kind of what they are for: words, static. Without those that explain
            nothing of the encoder.
    """

    name: str
    place: str
    model: Any
    vectors: np.ndarray
    probe: dict[str, np.ndarray]
    device: str = "cpu"
    ridges: dict[str, LexicalRidge] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """What could be written.

    Attributes:
        kind: plain, words or static.
        weight: of the words beside the encoder; None for an encoder without words, and for words alone.
    """

    side: Side
    kind: str
    weight: float | None = None

    @property
    def ridge(self) -> LexicalRidge | None:
        """Return the words that are written; None without."""
        return self.side.ridges.get(self.kind)

    @property
    def name(self) -> str:
        """Return what the table calls it."""
        return NAMES[self.side.name, self.kind]


def adapt(
    encoder: str | Path, documents: Documents, output: str | Path, options: AdaptOptions | None = None
) -> Adapted:
    """Fit the words of documents to an encoder, and write both, or the words alone, into a new folder.

    Args:
        encoder: a SentenceTransformer or any `AutoModel`, on the Hub or here. Words that it has are fitted anew. With
            "none" an encoder is made of the documents alone (`docsplit.embedding.closed_form`).
        documents: without labels: texts; or whatever `docsplit.data.corpora.load_corpus` reads: a file or folder,
            python_docs, or a data set on the Hub.
        output: a folder that does not exist, or is empty.
        options: what is made and how; by default the encoder with words.

    Returns: what was made, on the first process; on others, which only embed, nothing is known of it.

    Raises:
        ValueError: naming the remedy, for what cannot be adapted; nothing is written.
        OSError: if `output` cannot be written; nothing is left of it.

    Example:
        >>> from docsplit import adapt, load_encoder
        >>> adapted = adapt("sentence-transformers/all-MiniLM-L6-v2", "python_docs", "outputs/adapted")
        >>> load_encoder("outputs/adapted").encode("A text of this field.").shape
        (384,)
    """
    encoder, output, options = str(encoder), Path(output), options or AdaptOptions()
    check_bounds(options)
    if isinstance(documents, str | Path):  # before the encoder is loaded
        refuse_missing_path(documents, EXPECTED_CORPUS)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if encoder == closed_form.NOTHING:
        return _from_nothing(documents, output, options, is_first)
    seconds: dict[str, float] = {}
    repo_id = None
    with working_folder(output, is_first) as work:
        # Load what is needed; refuse what cannot be adapted before any long work
        with _timed("load", seconds):
            split = None
            if options.probe_corpus is not None:
                split = load_probe(options.probe_corpus, options.probe_text_column, options.probe_label_column)
            texts = _read(documents, options, split)
            start = load(encoder, options)
            lexical_ridge.whole_text_tokenizer(start)
            if options.push_to_hub and is_first:
                repo_id = prepare_release(output, options.hub_model_id, options.hub_private_repo)
        # Embed, and train a second encoder if one is wanted
        with _timed("embed", seconds):
            sides = [embed_to_adapt("start", encoder, start, texts, split, options)]
        if options.train:
            with _timed("train", seconds):
                place = train(encoder, start, texts, options, work)
            with _timed("embed what was trained", seconds):
                trained = load(place, replace(options, pooling=None))
                sides.append(embed_to_adapt("trained", place, trained, texts, split, options))
        if not is_first:
            return Adapted(output.resolve(), kept="")
        # Fit words, choose, write
        with _timed("fit", seconds):
            wanted = sides if split is not None else sides[-1:]
            for side in wanted:
                side.ridges = fit_words(side, texts, options)
        with _timed("choose", seconds):
            variant, candidates = choose(wanted, split, texts, options)
        tried = [ridge for side in reversed(wanted) for ridge in side.ridges.values()]
        ridge = variant.ridge or next(iter(tried), None)
        facts = ridge.facts if ridge is not None else None
        adapted = Adapted(output.resolve(), variant.name, variant.weight, facts, candidates, seconds)
        with _timed("write", seconds):
            record = _describe(
                adapted,
                encoder,
                documents,
                variant.side.device,
                kind=variant.kind,
                start=start_of(encoder),
                recipe=without_folders(options.recipe) if variant.side.name == "trained" else None,
                probe=without_folders(options.probe_corpus) if options.probe_corpus else None,
                hub_model_id=repo_id,
            )
            write(output, work, record, lambda new: save_variant(variant, new, texts, options))
    if repo_id is not None:
        push_at_the_end(adapted.output, repo_id, "Adapted encoder", outdated=list(RELEASE))
    return adapted


def _from_nothing(documents: Documents, output: Path, options: AdaptOptions, is_first: bool) -> Adapted:
    """Make an encoder of documents alone, and write it into a new folder."""
    given = [of.name for of in fields(options) if getattr(options, of.name) != of.default]
    if useless := sorted({*given} - {*FOR_NOTHING}):
        names = ", ".join(f"--{name}" for name in useless)
        raise ValueError(f"From nothing there is no encoder that {names} could change: leave that out.")
    seconds: dict[str, float] = {}
    repo_id = None
    with working_folder(output, is_first) as work:
        with _timed("load", seconds):
            texts = _read(documents, options, None)
            if options.push_to_hub and is_first:
                repo_id = prepare_release(output, options.hub_model_id, options.hub_private_repo)
        if not is_first:
            return Adapted(output.resolve(), kept="")
        with _timed("fit", seconds):
            words, facts = closed_form.fit_to_texts(texts)
            logger.info(facts.sentence())
        adapted = Adapted(output.resolve(), CLOSED_FORM, seconds=seconds)

        def save(new: Path) -> None:
            lexical_ridge.save_static(words, new)
            _keep_seen(None, texts, new)

        with _timed("write", seconds):
            made = {"kind": CLOSED_FORM, "start": StartRecord(), "of_halves": facts, "hub_model_id": repo_id}
            write(output, work, _describe(adapted, closed_form.NOTHING, documents, "cpu", **made), save)
    if repo_id is not None:
        push_at_the_end(adapted.output, repo_id, "Encoder of documents alone", outdated=list(RELEASE))
    return adapted


@contextmanager
def _timed(step: str, seconds: dict[str, float]) -> Iterator[None]:
    """Keep how long a step took."""
    started = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - started


# --- Load ---


def load(name: str, options: AdaptOptions) -> Any:
    """Load the plain encoder, with the length, pooling and prompts of the options, which it is saved with.

    Raises:
        ValueError: if it cannot be loaded.
    """
    if (earlier := Adaptation.read(Path(name))) is not None and earlier.kind in ("static", CLOSED_FORM):
        raise ValueError(f"{name} holds the words alone of {earlier.encoder}: adapt that encoder.")
    loaded = load_encoder(
        name, options.pooling, options.max_seq_length, prompt=options.prompt, query_prompt=options.query_prompt
    )
    if words_of(loaded) is not None:
        logger.info(f"{name} has words: those of these documents are fitted to its plain encoder in their place.")
    model = without_words(loaded)
    logger.info(f"{name}: {describe_computing(model.device, _dtype(model, options), reader_config(model))}")
    return model


def _dtype(model: Any, options: AdaptOptions) -> torch.dtype:
    return default_dtype(model.device) if options.dtype == "auto" else getattr(torch, options.dtype)


def _read(documents: Documents, options: AdaptOptions, split: LabelledSplit | None) -> list[str]:
    """Read the documents, without those that are measured on.

    Raises:
        ValueError: if they are too few.
    """
    texts = texts_to_adapt(documents, options.text_column, options.encoding)
    if split is not None:
        excluded = measured_on(split)
        kept = [text for text in texts if document_id(text) not in excluded]
        logger.info(
            f"{len(texts) - len(kept):,} of {len(texts):,} documents are left out: they are among the "
            f"{len(excluded):,} validation and test documents of --probe_corpus."
        )
        texts = kept
    number = len(distinct(texts)[0])
    if number < FEWEST_DOCUMENTS:
        raise ValueError(
            f"{number} distinct documents with text, of {len(texts):,}, are too few to adapt to: give "
            f"{FEWEST_DOCUMENTS} or more, better some hundreds."
        )
    return texts


def texts_to_adapt(documents: Documents, text_column: str, encoding: str | None = None) -> list[str]:
    """Return the texts of documents, empty ones among them.

    Raises:
        ValueError: if there is nothing to read, or something else than texts is given.
    """
    if not isinstance(documents, str | Path):
        return [document.text for document in documents_of(documents)]
    read = load_corpus(str(documents), text_column=text_column, encoding=encoding)
    dataset = for_pretraining(str(documents), read)
    column = add_text(dataset, text_column)[text_column]
    return [normalized(text) if isinstance(text, str) else "" for text in column]


# --- Embed, train and fit ---


def embed_to_adapt(
    name: str, place: str, model: Any, texts: Sequence[str], split: LabelledSplit | None, options: AdaptOptions
) -> Side:
    """Embed the documents, each once, and the labelled ones; vectors of empty texts are zero.

    Raises:
        ValueError: if a vector is not finite.
    """
    kept, document_of = distinct(texts)
    parts = split.texts if split is not None else {}
    everything = [texts[row] for row in kept] + [text for part in parts.values() for text in part]
    rows = {text: row for row, text in enumerate(dict.fromkeys(everything))}
    dtype = _dtype(model, options)
    truncate_dim, model.truncate_dim = model.truncate_dim, None
    logger.info(f"{name}: {reading_of(model, list(rows))}.")
    vectors, _ = embed_documents(model, list(rows), dtype=dtype, cache_dir=cache_directory(), show_progress=True)
    model.truncate_dim = truncate_dim
    device = model.device.type
    model.to("cpu")  # it waits there to be written
    of_documents = np.concatenate([vectors[: len(kept)], np.zeros_like(vectors[:1])])[document_of]
    of_parts = {part: vectors[[rows[text] for text in part_texts]] for part, part_texts in parts.items()}
    return Side(name, place, model, of_documents, of_parts, device)


def train(name: str, model: Any, texts: Sequence[str], options: AdaptOptions, work: Path) -> str:
    """Train an encoder by the recipe of the options, in a process of its own, whose log is seen; return its folder.

    All processes must call it; the first one trains.

    Args:
        name: of the encoder.
        model: the same, loaded; it is trained with its prompts, and without words.
        work: the folder to write into.

    Raises:
        ValueError: if the training fails, or if another process does not see its folder.
    """
    output = work / "trained"

    def run() -> None:
        start, corpus = name, work / "documents.jsonl"
        if options.prompt is not None or options.query_prompt is not None or has_words(name):
            start = str(work / "start")
            save_plain(model, Path(start))
            _keep_record(name, Path(start))
        with corpus.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": texts[row]}) + "\n" for row in distinct(texts)[0])
        given: dict[str, Any] = {"model_name_or_path": start, "corpus": corpus, "output_dir": output}
        given |= {"pooling": options.pooling, "max_seq_length": options.max_seq_length}
        given |= {"bf16": {"float32": False, "bfloat16": True}.get(options.dtype), "plugin": loaded_plugin()}
        words = [word for option, value in given.items() if value is not None for word in (f"--{option}", str(value))]
        environment = {variable: value for variable, value in os.environ.items() if variable not in LAUNCHER_VARIABLES}
        if torch.cuda.device_count() > 1:
            environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        logger.info(f"Training by the recipe {options.recipe} on {len(texts):,} documents")
        command = [sys.executable, str(ROOT / "run_docsplit_pretraining.py"), options.recipe, *words]
        if code := subprocess.run(command, env=environment).returncode:
            raise ValueError(f"The training ended with exit code {code}: its last lines, above, say why.")

    from_first(run)
    on_all(lambda: refuse_missing_path(output, "an OUTPUT on a file system that all machines share"))
    return str(output)


def fit_words(side: Side, texts: Sequence[str], options: AdaptOptions) -> dict[str, LexicalRidge]:
    """Fit words to an encoder, for each kind that could be written or is measured: words, static.

    Returns: by kind; without words that explain nothing of the encoder out of fold, which a warning names.
    """
    kinds = ["words", "static"] if options.probe_corpus is not None else ["static" if options.static else "words"]
    ridges = {}
    for kind in kinds:
        settings = RidgeSettings(options.penalty, options.neighbours, sublinear=kind == "words")
        ridge = lexical_ridge.fit(side.model, texts, side.vectors, settings)
        if not ridge.facts.explains_nothing:
            ridges[kind] = ridge
        else:
            logger.warning(
                f"Words explain nothing of the vectors of {side.place} ({100 * ridge.facts.share_explained:.1f} % of "
                f"the variance of documents left out): {kind} is left out."
            )
    return ridges


# --- Choose ---


def choose(
    sides: Sequence[Side], split: LabelledSplit | None, texts: Sequence[str], options: AdaptOptions
) -> tuple[Variant, list[Candidate]]:
    """Choose what is written: the best on labelled documents; without them words, if there are any.

    Raises:
        ValueError: if words alone are wanted, and there are none.
    """
    variants = variants_of(sides)
    static = [variant for variant in variants if variant.kind == "static"]
    if options.static and not static:
        raise ValueError(
            "Words explain nothing of this encoder's vectors: leave out --static, or give more documents of one field."
        )
    if split is None:
        wanted = "static" if options.static else "words"
        return next((variant for variant in variants if variant.kind == wanted), variants[-1]), []
    if (number := len(split.texts["train"]) + len(split.texts["validation"])) < 200:
        logger.warning(f"{number} documents of --probe_corpus choose what is written: so few say little.")
    candidates = measure(variants, split, texts)
    variant = best(variants, candidates)
    if options.static and variant.kind != "static":
        logger.warning(f"--static writes static encoders alone, though {variant.name} is better.")
        variant = best(static, [candidates[variants.index(one)] for one in static])
    print(f"\n{candidates_table(candidates, candidates[variants.index(variant)].label)}\n")
    if variant.name == "start":
        logger.warning("Keep what you had: nothing is better than the start on the labelled documents.")
    return variant, candidates


def variants_of(sides: Sequence[Side]) -> list[Variant]:
    """List all that could be written: of what is equally good, the earlier is taken."""
    variants = []
    for side in sides:
        variants.append(Variant(side, "plain"))
        if "words" in side.ridges:
            weight = side.ridges["words"].facts.weight
            variants += [Variant(side, "words", round(factor * weight, 2)) for factor in FACTORS]
        if "static" in side.ridges:
            variants.append(Variant(side, "static"))
    return variants


def measure(variants: Sequence[Variant], split: LabelledSplit, texts: Sequence[str]) -> list[Candidate]:
    """Measure each variant by logistic regression on labelled documents, with 5 labels a class and with all.

    Validation is cross-validation on all of them but the test part, with near copies in one fold.
    The vectors of labelled documents that words were fitted on are those by words fitted without them. An encoder that
    was trained has read these documents, without labels.

    Args:
        texts: that words were fitted on.
    """
    row_of = {document_id(text): row for row, text in enumerate(texts)}
    rows_of_parts = {  # rows (M,) among the texts; -1 for a document that is not among them
        part: np.array([row_of.get(document_id(text), -1) for text in labelled])
        for part, labelled in split.texts.items()
    }
    directions: dict[int, dict[str, np.ndarray]] = {}  # r (M, H) of each part, by the identity of a ridge
    ridges = [ridge for variant in variants if (ridge := variant.ridge) is not None]
    for ridge in {id(ridge): ridge for ridge in ridges}.values():
        left_out, parts = ridge.leave_one_out(), {}
        for part, rows in rows_of_parts.items():
            parts[part] = words_of_texts(ridge.words, split.texts[part])
            parts[part][rows >= 0] = left_out[rows[rows >= 0]]
        directions[id(ridge)] = parts
    labels = np.concatenate([split.labels[part] for part in ("train", "validation")])
    groups = near_copy_groups([text for part in ("train", "validation") for text in split.texts[part]])
    folds = list(folds_of(labels, groups, ADAPT_FOLDS, seed=0))
    drawable = [
        number for number in range(len(split.class_names))
        if all(np.count_nonzero(labels[train] == number) >= SHOTS for train, _ in folds)
    ]  # fmt: skip
    if scarce := sorted(set(split.class_names) - {split.class_names[number] for number in drawable}):
        logger.warning(f"These classes do not choose, for most of their documents are near copies: {some(scarce)}.")
    is_drawable = np.isin(labels, drawable)
    folds = [(train[is_drawable[train]], held[is_drawable[held]]) for train, held in folds]
    labels = np.searchsorted(drawable, labels)
    names = [split.class_names[number] for number in drawable]
    candidates = []
    for variant in variants:
        features = variant.side.probe
        if variant.ridge is not None:
            words = directions[id(variant.ridge)]
            features = (
                words
                if variant.weight is None
                else {
                    part: add_words(torch.from_numpy(vectors), torch.from_numpy(words[part]), variant.weight).numpy()
                    for part, vectors in variant.side.probe.items()
                }
            )
        points = np.concatenate([features[part] for part in ("train", "validation")])
        of_folds = [
            probe_accuracy(
                replace(split, train_labels=labels[train], validation_labels=labels[held], class_names=names),
                {"train": points[train], "validation": points[held]},
            )["validation"]
            for train, held in folds
        ]
        validation = {name: float(np.mean([of_fold[name] for of_fold in of_folds])) for name in PROBE_MEASURES}
        test = probe_accuracy(split, features)["test"]
        candidates.append(Candidate(variant.name, variant.weight, validation, test))
    return candidates


@torch.no_grad()
def words_of_texts(words: Words, texts: Sequence[str]) -> np.ndarray:
    """Return r of texts, (M, H)."""
    parts = []
    for start in range(0, len(texts), TEXTS_PER_CHUNK):
        parts.append(words(**words.preprocess(texts[start : start + TEXTS_PER_CHUNK])).numpy())
    return np.concatenate(parts)


def best(variants: Sequence[Variant], candidates: Sequence[Candidate]) -> Variant:
    """Choose by the sum of both validation accuracies, with 5 labels a class and with all; the first of equals."""
    scores = [sum(candidate.validation.values()) for candidate in candidates]
    return variants[scores.index(max(scores))]


# --- Write ---


@contextmanager
def working_folder(output: Path, is_first: bool) -> Iterator[Path]:
    """Give a folder beside `output` to work in, which is removed at the end; the first process makes it.

    Raises:
        ValueError: if there is something at `output`, or another run writes it.
        OSError: if nothing can be written beside it.
    """
    refuse_used(output, "name another OUTPUT")
    work = output.resolve().with_name(f".{output.resolve().name}{PARTIAL}")
    if not is_first:
        yield work
        return
    taken = OutputFolder(work, "adapt.py", "OUTPUT").take()

    def empty() -> None:
        for path in [path for path in work.iterdir() if path.name not in (LOCK, RECORD)]:  # these say whose it is
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    empty()  # of what a killed run left
    try:
        yield work
    finally:
        empty()
        taken.close()
        with contextlib.suppress(OSError):  # another run has it already
            work.rmdir()


def _keep_record(start: str, folder: Path) -> None:
    """Copy the record of the documents that a start was trained on beside what is saved of it."""
    if (documents := training_documents_of(start)) is not None:
        documents.save(folder)


def _keep_seen(start: str | None, texts: Sequence[str], folder: Path) -> None:
    """Write the record of documents that a start was trained on, and of those that its words were fitted on."""
    before = None if start is None else training_documents_of(start)
    seen = TrainingDocuments(is_complete=start is None) if before is None else before.for_next_run()
    fitted = [texts[row] for row in distinct(texts)[0]]
    sketches = sketch(fitted) if len(fitted) <= MOST_SKETCHES else None
    seen.run.add(np.array([document_id(text) for text in fitted], dtype=np.int64), sketches)
    seen.save(folder)


def save_variant(variant: Variant, new: Path, texts: Sequence[str], options: AdaptOptions) -> None:
    """Save what was chosen, and the record of its documents.

    Args:
        texts: that words were fitted on.
    """
    side = variant.side
    if variant.ridge is None:
        # The files of an encoder where they load as a SentenceTransformer, as it is now; else it is saved
        given = (options.pooling, options.max_seq_length, options.prompt, options.query_prompt)
        is_changed = any(value is not None for value in given)
        files = None if is_changed or has_words(side.place) else folder_of(side.place)
        if files is not None and (files / "modules.json").exists() and any(files.glob("model*.safetensors")):
            put_back(files, new)
        else:
            save_plain(side.model, new)
            _keep_record(side.place, new)
        return
    if variant.weight is None:
        lexical_ridge.save_static(variant.ridge.words, new)
    else:
        lexical_ridge.save_with_words(side.model, variant.ridge.words, variant.weight, new)
    _keep_seen(side.place, texts, new)


def write(output: Path, work: Path, record: Adaptation, save: Callable[[Path], None]) -> None:
    """Write an encoder, its record and its card: into the working folder, which then takes its name.

    Args:
        save: writes the encoder into a folder.

    Raises:
        OSError: if that fails, by a full disk, say.
    """
    new, target = work / "output", output.resolve()
    try:
        new.mkdir()
        save(new)
        (new / "README.md").unlink(missing_ok=True)
        record.write(new)
        write_card(new, record.hub_model_id or target.name)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        flush_folder(new)
        new.rename(target)
        flush(target.parent)
    except Exception as error:
        if isinstance(error, OSError) or why_not_written(error):
            cause = " ".join(str(error).split())
            raise OSError(f"{output} cannot be written, and nothing is left of it: {cause}") from error
        raise


def _describe(adapted: Adapted, encoder: str, documents: Documents, device: str, **made: Any) -> Adaptation:
    """Make the record of what is written; `made` has what is not said elsewhere."""
    is_name = isinstance(documents, str | Path)
    return Adaptation(
        kept=label_of(adapted.kept, adapted.weight),
        weight=adapted.weight,
        encoder=without_folders(encoder),
        documents=without_folders(str(documents)) if is_name else "a list of texts",
        documents_are_local=not is_name or Path(str(documents)).exists(),
        facts=adapted.facts,
        candidates=adapted.candidates,
        seconds=dict(adapted.seconds),
        hardware=hardware(device),
        versions=versions(),
        commit=commit_of_code(),
        **made,
    )


def adaptation_text(adapted: Adapted, encoder: str) -> str:
    """Return what was written, how much of the encoder the words explain, and how it is used."""
    facts, folder = adapted.facts, adapted.output
    purpose = "It is for classes, groups and maps; search hardly gains by it. A map"
    use = use_of(folder, purpose, "explore.py", folder, "--corpus", "YOUR_DOCUMENTS")
    if adapted.kept == CLOSED_FORM:
        alone = "an encoder of these documents alone. In a search let words count for more: --weight 0.5"
        return f"Wrote {folder}: {alone}.\n{use}"
    weight = "" if adapted.weight in (None, 1) else f", weight {adapted.weight:g}"
    lines = [f"Wrote {folder}: {adapted.kept}{weight}, of {without_folders(encoder)}."]
    if facts is not None and adapted.kept not in ("start", "trained"):
        lines.append(
            f"The words of {facts.documents:,} documents explain {100 * facts.share_explained:.0f} % of the variance "
            "of the encoder's vectors, on documents left out of the fit."
        )
    return "\n".join([*lines, use])
