"""Adapt an encoder to documents without labels: one call, from a name and texts to a folder that can be loaded.

    adapt("sentence-transformers/all-MiniLM-L6-v2", "notes/", "outputs/mine")

load     encoder and documents; whatever can fail early does
embed    the documents, and labelled ones if there are any
train    the encoder, with `train`: neighbour distillation in a process of its own
fit      words to the vectors of the encoder, in closed form (`docsplit.embedding.lexical_ridge`)
choose   among all candidates, by labelled validation documents
write    the folder, whole or not at all

With several processes (`torch.distributed`) all embed; the first one does the rest.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from docsplit.data.corpora import EXPECTED, PYTHON_DOCS, add_text, for_pretraining, load_corpus
from docsplit.data.readers.base import normalized
from docsplit.data.readers.documents import Documents, documents_of
from docsplit.data.seen_documents import document_id
from docsplit.data.sets.labelled import LabelledSplit, load_probe
from docsplit.embedding import lexical_ridge
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.lexical_ridge import FEWEST_DOCUMENTS, LexicalRidge, RidgeFacts, RidgeSettings, distinct
from docsplit.embedding.loading import load_encoder, reader_config, without_words, words_of
from docsplit.evaluation.results.data_names import without_folders
from docsplit.modeling.sentence_transformers_files import document_prompt, trust_argument
from docsplit.release.hub import RELEASE, prepare_release, push_at_the_end
from docsplit.release.model_card import candidates_table
from docsplit.release.records import Adaptation, Candidate, start_of
from docsplit.runtime.command import command_line
from docsplit.runtime.files import cache_directory, commit_of_code, refuse_missing_path, versions
from docsplit.runtime.launching import default_dtype, describe_computing, hardware
from docsplit.runtime.options import check_bounds
from docsplit.training.adaptation import candidates as choice
from docsplit.training.adaptation.candidates import Side, Variant
from docsplit.training.adaptation.folder import Folder, train
from docsplit.training.adaptation.options import AdaptOptions
from docsplit.training.documents import measured_on

logger = logging.getLogger(__name__)

FEW_VALIDATION = 100  # labelled documents to choose by
OF_SIDES = {"start": "the encoder", "trained": "the trained encoder"}
OF_KINDS = {  # of words that are fitted
    ("words",): "",
    ("static",): ", to stand alone",
    ("words", "static"): ", once to stand beside them and once to stand alone",
}
HOLDS = {  # by what was kept
    "start": "{encoder} as it was",
    "words": "{encoder} with the words of {documents}",
    "static": "a static encoder, the words of {documents} fitted to {encoder}",
    "trained": "{encoder} trained on {documents}, without words",
    "trained + words": "{encoder} trained on {documents}, with their words",
    "static of trained": "a static encoder, the words of {documents} fitted to {encoder} trained on them",
}


@dataclass
class Adapted:
    """What came out of adapting an encoder.

    Attributes:
        output: the folder, which SentenceTransformer loads.
        kept: what is in it: start, words, static, trained, trained + words or static of trained.
        weight: of the words beside the encoder; None without words, and for words alone.
        facts: of the words that are kept, else of those that were tried; None where none could be fitted.
        candidates: what was measured on labelled documents, if there were any.
        seconds: of each step.
    """

    output: Path
    kept: str
    weight: float | None = None
    facts: RidgeFacts | None = None
    candidates: list[Candidate] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def adapt(
    encoder: str | Path, documents: Documents, output: str | Path, options: AdaptOptions | None = None
) -> Adapted:
    """Fit the words of documents to an encoder, and write both, or the words alone, into a new folder.

    Args:
        encoder: a SentenceTransformer or any `AutoModel`, on the Hub or here. Words that it has are fitted anew.
        documents: without labels: texts; or whatever `docsplit.data.corpora.load_corpus` reads: a file or folder,
            python_docs, or a data set on the Hub.
        output: a folder that does not exist, or is empty.
        options: what is made and how; by default the encoder with words.

    Returns: what was made, on the first process; on others, which only embed, nothing is known of it.

    Raises:
        ValueError: naming the remedy, for what cannot be adapted; nothing is written.
        OSError: if `output` cannot be written; nothing is left of it.
    """
    encoder, options = str(encoder), options or AdaptOptions()
    check_bounds(options)
    if isinstance(documents, str | Path):  # before the encoder is loaded
        refuse_missing_path(documents, EXPECTED)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    seconds: dict[str, float] = {}
    repo_id = None
    with Folder(Path(output), is_first) as folder:
        # Load what is needed; refuse what cannot be adapted before any long work
        with _timed("load", seconds):
            start = load(encoder, options)
            lexical_ridge.whole_text_tokenizer(start)
            split = _load_split(options)
            texts = _read(documents, options, split)
            if options.push_to_hub and is_first:
                repo_id = prepare_release(folder.output, options.hub_model_id, options.hub_private_repo)
        # Embed, and train a second encoder if one is wanted
        with _timed("embed", seconds):
            sides = [embed("start", encoder, start, texts, split, options)]
        if options.train:
            with _timed("train", seconds):
                place = train(encoder, start, texts, options, folder)
            with _timed("embed what was trained", seconds):
                trained = load(place, replace(options, pooling=None))
                sides.append(embed("trained", place, trained, texts, split, options))
        if not is_first:
            return Adapted(folder.output, kept="")
        # Fit words, choose, write
        with _timed("fit", seconds):
            wanted = sides if split is not None else sides[-1:]
            for side in wanted:
                side.ridges = fit(side, texts, options)
        with _timed("choose", seconds):
            variant, candidates = choose(wanted, split, texts, options)
        tried = [ridge for side in reversed(wanted) for ridge in side.ridges.values()]
        ridge = variant.ridge or next(iter(tried), None)
        adapted = Adapted(
            folder.output, variant.name, variant.weight, ridge.facts if ridge else None, candidates, seconds
        )
        with _timed("write", seconds):
            record = _describe(adapted, variant, encoder, documents, options)
            folder.write(variant, replace(record, hub_model_id=repo_id), texts, _is_changed(options))
    logger.info(f"Seconds: {', '.join(f'{step} {taken:.1f}' for step, taken in seconds.items())}.")
    if repo_id is not None:
        push_at_the_end(adapted.output, repo_id, "Adapted encoder", outdated=list(RELEASE))
    return adapted


# --- Load ---


def load(name: str, options: AdaptOptions) -> Any:
    """Load the plain encoder, with the length, pooling and prompt of the options, which it is saved with.

    Raises:
        ValueError: if it cannot be loaded, or cannot keep the prompt.
    """
    if (earlier := Adaptation.read(Path(name))) is not None and earlier.kind == "static":
        raise ValueError(
            f"{name} holds the words alone of {earlier.encoder}, fitted to other documents: adapt that encoder to "
            "these, with --static again."
        )
    loaded = load_encoder(name, options.pooling, options.max_seq_length)
    if (words := words_of(loaded)) is not None:
        logger.info(
            f"{name} has words, of {len(words.pieces):,} tokens: they are left out, and those of these documents are "
            "fitted to its plain encoder."
        )
    model = without_words(loaded)
    logger.info(f"{name}: {describe_computing(model.device, _dtype(model, options), reader_config(model))}")
    if options.prompt is not None:
        model.prompts["document"] = options.prompt
        if (kept := document_prompt(model.prompts, model.default_prompt_name)) != options.prompt:
            raise ValueError(f"--prompt is {options.prompt!r}, but {name} would go on with its own, {kept!r}.")
    return model


def _load_split(options: AdaptOptions) -> LabelledSplit | None:
    corpus, text_column, label_column = options.probe_corpus, options.probe_text_column, options.probe_label_column
    if corpus is None:
        return None
    try:
        return load_probe(corpus, text_column, label_column)
    except ValueError as error:
        columns = f"--probe_text_column {text_column} and --probe_label_column {label_column}"
        raise ValueError(f"--probe_corpus {corpus} cannot be measured on, with {columns}: {error}") from error


def _read(documents: Documents, options: AdaptOptions, split: LabelledSplit | None) -> list[str]:
    """Read the documents, without those that are measured on.

    Raises:
        ValueError: if they are too few.
    """
    texts = read_texts(documents, options.text_column, options.encoding)
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


def read_texts(documents: Documents, text_column: str, encoding: str | None = None) -> list[str]:
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


# --- Embed and fit ---


def embed(
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
    vectors, _ = embed_documents(model, list(rows), dtype=dtype, cache_dir=cache_directory(), show_progress=True)
    model.truncate_dim = truncate_dim
    device = model.device.type
    model.to("cpu")  # it waits there to be written
    of_documents = np.concatenate([vectors[: len(kept)], np.zeros_like(vectors[:1])])[document_of]
    of_parts = {part: vectors[[rows[text] for text in part_texts]] for part, part_texts in parts.items()}
    return Side(name, place, model, of_documents, of_parts, device)


def _dtype(model: Any, options: AdaptOptions) -> torch.dtype:
    return default_dtype(model.device) if options.dtype == "auto" else getattr(torch, options.dtype)


def fit(side: Side, texts: Sequence[str], options: AdaptOptions) -> dict[str, LexicalRidge]:
    """Fit words to an encoder, for each kind that could be written or is measured: words, static.

    Returns: by kind; without words that explain nothing of the encoder out of fold, which a warning names.
    """
    kinds = ["words", "static"] if options.probe_corpus is not None else ["static" if options.static else "words"]
    ridges = {}
    logger.info(f"Fitting words to the vectors of {OF_SIDES[side.name]}{OF_KINDS[tuple(kinds)]}.")
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
    """Choose what is written: the best on validation documents; without them words, if there are any.

    Raises:
        ValueError: if words alone are wanted, and there are none.
    """
    variants = choice.variants_of(sides)
    static = [variant for variant in variants if variant.kind == "static"]
    if options.static and not static:
        raise ValueError(
            "Words explain nothing of this encoder's vectors, so that there is no static encoder: leave out --static, "
            "or give more documents of one field."
        )
    if split is None:
        wanted = "static" if options.static else "words"
        return next((variant for variant in variants if variant.kind == wanted), variants[-1]), []
    if (number := len(split.texts["validation"])) < FEW_VALIDATION:
        logger.warning(
            f"{number} validation documents of --probe_corpus choose what is written: so few say little. Give more "
            f"labelled documents, so that {FEW_VALIDATION} or more are for validation."
        )
    else:
        logger.info(f"{number:,} validation documents of --probe_corpus choose what is written.")
    candidates = choice.measure(variants, split, texts)
    variant = choice.best(variants, candidates)
    if options.static and variant.kind != "static":
        logger.warning(f"--static writes static encoders alone, though {variant.name} is better on validation.")
        variant = choice.best(static, [candidates[variants.index(one)] for one in static])
    kept = candidates[variants.index(variant)].label
    print(f"\n{candidates_table(candidates, kept)}\n")
    if variant.name == "start":
        logger.warning("Keep what you had: nothing is better than the start on the validation documents.")
    return variant, candidates


# --- What is said ---


def _is_changed(options: AdaptOptions) -> bool:
    """Whether options change how the encoder embeds."""
    return any(value is not None for value in (options.pooling, options.max_seq_length, options.prompt))


def _describe(
    adapted: Adapted, variant: Variant, encoder: str, documents: Documents, options: AdaptOptions
) -> Adaptation:
    """Make the record of what is written."""
    is_name = isinstance(documents, str | Path)
    return Adaptation(
        kind=variant.kind,
        kept=variant.label,
        weight=variant.weight,
        encoder=without_folders(encoder),
        start=start_of(encoder),
        documents=without_folders(str(documents)) if is_name else "a list of texts",
        documents_are_local=not is_name or Path(str(documents)).exists(),
        facts=adapted.facts,
        recipe=without_folders(options.recipe) if variant.side.name == "trained" else None,
        probe=without_folders(options.probe_corpus) if options.probe_corpus else None,
        candidates=adapted.candidates,
        seconds=dict(adapted.seconds),
        hardware=hardware(variant.side.device),
        versions=versions(),
        commit=commit_of_code(),
    )


@contextmanager
def _timed(step: str, seconds: dict[str, float]) -> Iterator[None]:
    """Keep how long a step took."""
    started = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - started


def closing_text(adapted: Adapted, encoder: str, documents: Documents, options: AdaptOptions) -> str:
    """Return what was written, how much of the encoder the words explain, and the next commands."""
    facts, folder = adapted.facts, adapted.output
    texts = f"{facts.documents:,} documents" if facts is not None else "the documents"
    holds = HOLDS[adapted.kept].format(encoder=without_folders(encoder), documents=texts)
    weight = "" if adapted.weight in (None, 1) else f", weight {adapted.weight:g}"
    lines = [f"Wrote {folder}: {holds}{weight}."]
    if facts is not None and adapted.kept not in ("start", "trained"):
        share = f"{100 * facts.share_explained:.0f} % of the variance of the encoder's vectors"
        lines.append(f"The words explain {share}, of documents that they were not fitted on.")
    lines.append(f"In Python, SentenceTransformer({str(folder)!r}{trust_argument(folder)}) loads it. Next:")
    is_path = isinstance(documents, str | Path) and Path(documents).exists()
    build = ["build", documents if is_path else "YOUR_DOCUMENTS", "--model", folder, "--index_dir", f"{folder}.index"]
    build += ["--text_column", options.text_column] if options.text_column != "text" else []
    build += ["--encoding", options.encoding] if options.encoding else []
    measure = ["--model_name_or_path", encoder, folder, "tfidf", *_labelled(documents, options)]
    commands = [command_line("search.py", *build), command_line("run_probe_classification.py", *measure)]
    return "\n".join([*lines, *(f"    {command}" for command in commands)])


def _labelled(documents: Documents, options: AdaptOptions) -> list[str]:
    """Return the words that name labelled documents for run_probe_classification.py; it has python_docs by default."""
    corpus = options.probe_corpus
    if PYTHON_DOCS in (corpus, documents):
        return []
    columns = {"--text_column": options.probe_text_column, "--label_column": options.probe_label_column}
    given = [word for option, name in columns.items() if f"--{name}_column" != option for word in (option, name)]
    if corpus is None:
        return ["--train_file", "YOUR_LABELLED_DOCUMENTS.jsonl"]
    return ["--train_file" if Path(corpus).exists() else "--dataset_name", corpus, *given]
