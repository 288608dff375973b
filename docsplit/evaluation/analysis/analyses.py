"""All analyses of encoders, from arrays that a script gives.

choose_documents    the sample, its sentences, halves and tags: the same for all encoders
redundancy          of the documents, which needs no encoder
measure, merge      of one encoder; of those of several pretraining seeds together
write               all files
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.data.sets.labelled_files import stratified_sample
from docsplit.data.tagging import describe_tagger, tag
from docsplit.evaluation.analysis import estimates, sections
from docsplit.evaluation.analysis.attention_by_word import (
    CLASSES,
    DocumentWords,
    WordWeights,
    attention_estimates,
    document_words,
    word_weights,
)
from docsplit.evaluation.analysis.clustering import check_labels, clusterings, one_label
from docsplit.evaluation.analysis.estimates import Estimates
from docsplit.evaluation.analysis.geometry import geometry
from docsplit.evaluation.analysis.graph_attention import choose_document, graph_attention_section
from docsplit.evaluation.analysis.maps import check_size, plot_maps, project
from docsplit.evaluation.analysis.redundancy import content_words, redundancy_rows
from docsplit.evaluation.analysis.report import HTML_FILE, JSON_FILE, MARKDOWN_FILE, Section, Table, write_report
from docsplit.evaluation.analysis.similarity import COMPARED, Sentences, choose_sentences, similarity
from docsplit.evaluation.heads.presets import GRAPH_ATTENTION
from docsplit.evaluation.results import comparison
from docsplit.evaluation.results import result as results
from docsplit.evaluation.results.report import write_comparison
from docsplit.evaluation.results.tables import encoder_names
from docsplit.evaluation.results.task import CLUSTERING
from docsplit.runtime.files import versions

logger = logging.getLogger(__name__)

MAX_REDUNDANCY = 10_000  # documents
NEIGHBOURS = 10  # of hubness


class AnalysisOptions(Protocol):
    """What is analysed."""

    analyses: list[str]
    output_dir: str
    spacy_pipeline: str
    sentence_splitter: str
    sample_documents: int
    word_weight: str
    map_method: str
    num_seeds: int
    seed: int


@dataclass(frozen=True)
class Documents:
    """The sample of test documents, and what all encoders get of them."""

    rows: np.ndarray  # (D,) of the test documents
    texts: list[str]
    classes: np.ndarray  # (D,) class indices, or (D, C) multi-hot
    sentences: Sentences
    halves: list[str]  # two for each document with two sentences, one after the other
    pipeline: str = ""
    words: list[DocumentWords] = field(default_factory=list)  # of the main process
    of_graph: int = 0  # number in the sample of the document whose graph is shown


def strata_of(labels: np.ndarray) -> np.ndarray:
    """A number for each document, equal for equal labels: of (N,) or (N, C)."""
    return labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)


def choose_documents(split: LabelledSplit, options: AnalysisOptions, tagger: Any) -> Documents:
    """Draw the sample; cut it into sentences and halves, and tag it, as far as the analyses need that.

    Args:
        tagger: of `docsplit.data.tagging.load_tagger`; None where nothing is tagged.

    Raises:
        ValueError: if there are too few documents, sentences or labels for an analysis, before any long work.
    """
    rows = stratified_sample(strata_of(split.test_labels), options.sample_documents, options.seed)
    if "map" in options.analyses:
        check_size(len(rows))
    if "clustering" in options.analyses:
        check_labels(split.train_labels, split.test_labels)
    texts, classes = [split.test_texts[row] for row in rows], split.test_labels[rows]
    none = Sentences([], np.zeros(0, int), len(rows), np.zeros((0, 2), int), np.zeros((0, 2), int), {})
    documents = Documents(rows, texts, classes, none, [])
    chosen: dict[str, Any] = {}
    if GRAPH_ATTENTION in options.analyses:
        chosen["of_graph"] = choose_document(texts)
    if {"similarity", "geometry"} & set(options.analyses):
        cut = load_sentence_splitter(options.sentence_splitter)
        sentences = [cut(clean_text(text)) for text in texts]
        if "similarity" in options.analyses:
            chosen["sentences"] = choose_sentences(sentences, classes, options.seed)
        if "geometry" in options.analyses:
            chosen["halves"] = random_halves(sentences, options.seed)
    if "attention" in options.analyses and tagger is not None:
        logger.info(f"Tagging {len(texts):,} documents, whose attention is measured, by {describe_tagger(tagger)}")
        tagged = ((own.lemmas, own.parts_of_speech, own.spans) for own in tag(tagger, texts))
        chosen |= {"words": document_words(tagged), "pipeline": describe_tagger(tagger)}
    return Documents(**vars(documents) | chosen)


def random_halves(sentences: Sequence[Sequence[str]], seed: int) -> list[str]:
    """Each sentence to one of two halves at random, as DocSplit's view does: two texts for each document.

    A document of fewer than two sentences has none; an empty half is drawn again.

    Raises:
        ValueError: if fewer than two documents have two sentences.
    """
    generator, halves = np.random.default_rng((seed, 7)), []
    for own in sentences:
        if len(own) > 1:
            while (first := generator.random(len(own)) < 0.5).all() or not first.any():
                pass
            halves += [" ".join(one for one, is_in in zip(own, chosen) if is_in) for chosen in (first, ~first)]
    if len(halves) < 4:
        raise ValueError(f"{len(halves) // 2} documents have two sentences: alignment needs two or more.")
    return halves


def redundancy(split: LabelledSplit, tagger: Any, seed: int) -> dict[str, Any]:
    """`redundancy_rows` of a random sample of the documents of all parts."""
    texts = [text for part in split.texts.values() for text in part]
    chosen = np.sort(np.random.default_rng((seed, 8)).permutation(len(texts))[:MAX_REDUNDANCY])
    sample = [texts[row] for row in chosen]
    logger.info(f"Tagging {len(sample):,} documents by {describe_tagger(tagger)}")
    tagged = ((own.lemmas, own.parts_of_speech) for own in tag(tagger, sample))
    rows, growth = redundancy_rows(content_words(tagged, [len(text.split()) for text in sample]), seed)
    sampled = f" drawn from {len(texts):,}" if len(sample) < len(texts) else ", all parts together"
    found = {"rows": rows, "growth": growth, "documents": len(sample), "sampled": sampled}
    return found | {"pipeline": describe_tagger(tagger)}


def measure(
    name: str, embedded: dict[str, Any], split: LabelledSplit, documents: Documents, options: AnalysisOptions
) -> dict[str, Any]:
    """What the analyses find of one encoder.

    Args:
        embedded: `parts`, of each kind of features train and test (N, H); `info`; and as far as they are asked for
            `sentences` (S, H), `halves` (2 B, H), `neighbours` (N, k) of the test documents, and `attention`: facts
            for the row, and the attention to the tokens of each document of the sample.
    """
    found: dict[str, Any] = {"info": embedded["info"]}
    test = embedded["parts"]["raw"]["test"]
    if "similarity" in options.analyses:
        logger.info(f"Similarity of sentences by {name}")
        found["similarity"] = Estimates(name, similarity(embedded["sentences"], documents.sentences))
    if "attention" in options.analyses and "attention" in embedded:
        about, tokens = embedded["attention"]
        logger.info(f"Attention of {name} in {len(documents.texts):,} documents")
        own = list(_to_words(tokens, documents.words, options.word_weight))
        values, counts = attention_estimates(documents.words, own)
        found["attention"] = Estimates(name, values, about | counts)
    if "clustering" in options.analyses:
        logger.info(f"Clusters of {name}: {options.num_seeds} runs of k-means on each kind of features")
        labels = {"train": split.train_labels, "test": split.test_labels}
        seeds = None if embedded["info"]["num_parameters"] == 0 else 1
        arguments = (embedded["parts"], labels, embedded["info"], options.num_seeds, options.seed, seeds)
        found["clustering"] = list(clusterings(name, *arguments))
    if "geometry" in options.analyses:
        halves = embedded["halves"].reshape(-1, 2, embedded["halves"].shape[1])
        found["geometry"] = geometry(test, halves, embedded["neighbours"])
    if embedded.get(GRAPH_ATTENTION) is not None:
        found[GRAPH_ATTENTION] = embedded[GRAPH_ATTENTION]
    if "map" in options.analyses:
        logger.info(f"Map of {name}: {len(documents.rows):,} documents")
        found["map"] = project(test[documents.rows], options.map_method, options.seed)
    return found


def _to_words(tokens: Iterable[Any], words: Sequence[DocumentWords], pieces: str) -> Iterable[WordWeights]:
    for own, document in zip(tokens, words):
        yield word_weights(own.weights, own.offsets, document.spans, pieces)


def merge(name: str, members: Sequence[str], measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `measure` found of encoders from several pretraining seeds, as one; map and graph are the first one's."""
    found: dict[str, Any] = {"encoder": name, "members": [] if [name] == list(members) else list(members)}
    found["info"] = measured[0]["info"]
    for analysis in ("similarity", "attention"):
        if analysis in measured[0]:
            found[analysis] = estimates.merge_members(name, members, [one[analysis] for one in measured])
    if "clustering" in measured[0]:
        found["clustering"] = results.merge_members(name, members, [one["clustering"] for one in measured])
    if "geometry" in measured[0]:
        found["geometry"] = estimates.mean_row(name, members, [one["geometry"] for one in measured])
    for analysis in ("map", GRAPH_ATTENTION):
        if analysis in measured[0]:
            found[analysis] = measured[0][analysis]
    return found


def contents_of(
    found: dict[str, Any], split: LabelledSplit, documents: Documents, options: AnalysisOptions
) -> dict[str, Any]:
    """What analysis.json says of each analysis: rows, paired differences, and on how much it was measured."""
    contents: dict[str, Any] = {"redundancy": found["redundancy"]} if "redundancy" in found else {}
    of = {name: [one[name] for one in found["encoders"] if name in one] for name in options.analyses}
    if own := of.get("similarity"):
        sentences = documents.sentences
        contents["similarity"] = {
            "rows": [estimates.row_of(one) for one in own],
            "differences": estimates.differences(own, COMPARED),
            "documents": len(documents.rows),
            "counts": sentences.counts,
            "inter_pairs": len(sentences.inter),
            "same_class_pairs": len(sentences.same_class),
            "splitter": options.sentence_splitter,
        }
    if own := of.get("attention"):
        contents["attention"] = {
            "rows": [estimates.row_of(one) for one in own],
            "differences": estimates.differences(own, [f"{name}_to_uniform" for name in CLASSES]),
            "documents": len(documents.rows),
            "pipeline": documents.pipeline,
            "word_weight": options.word_weight,
        }
    if own := of.get("clustering"):
        flat = [result for several in own for result in several]
        kept = {
            part: one_label(labels)[1] for part, labels in (("train", split.train_labels), ("test", split.test_labels))
        }
        left_out = len(split.train_texts) + len(split.test_texts) - sum(map(len, kept.values()))
        contents["clustering"] = {
            "rows": comparison.rows(flat),
            "comparisons": comparison.comparisons(flat),
            "train_documents": len(kept["train"]),
            "test_documents": len(kept["test"]),
            "clusters": len(np.unique(kept["train"])),
            "largest_class": float(np.bincount(kept["test"]).max() / len(kept["test"])),
            "left_out": f" Left out: {left_out:,} documents with several labels or none." if left_out else "",
        }
    if own := of.get("geometry"):
        contents["geometry"] = {"rows": own, "documents": len(split.test_texts), "halved": len(documents.halves) // 2}
        contents["geometry"]["neighbours"] = min(NEIGHBOURS, len(split.test_texts) - 1)
    if graphs := {one["encoder"]: one[GRAPH_ATTENTION] for one in found["encoders"] if GRAPH_ATTENTION in one}:
        contents[GRAPH_ATTENTION] = {"document": int(documents.rows[documents.of_graph]), "encoders": graphs}
    return contents


def write(
    found: dict[str, Any],
    split: LabelledSplit,
    documents: Documents,
    options: AnalysisOptions,
    data: str,
    statistics: Sequence[dict[str, Any]],
    settings: dict[str, Any],
) -> str:
    """Write analysis.json, analysis.md and report.html, and of the clusters results.json and results.md.

    Returns: what to print.
    """
    folder, title = Path(options.output_dir), f"Embedding analysis: {data}"
    contents = contents_of(found, split, documents, options)
    shown = [_about_data(statistics, found["encoders"])]
    if "redundancy" in contents:
        shown.append(sections.redundancy_section(contents["redundancy"], data, folder))
    if "similarity" in contents:
        shown.append(sections.similarity_section(contents["similarity"], data, folder))
    if "attention" in contents:
        shown.append(sections.attention_section(contents["attention"], folder))
    if clusters := contents.get("clustering"):
        shown.append(sections.clustering_section(clusters, data))
        write_comparison(
            folder, CLUSTERING, clusters["rows"], clusters["comparisons"], settings, statistics, "Clusters", data=data
        )
    if "geometry" in contents:
        shown.append(sections.geometry_section(contents["geometry"]))
    if GRAPH_ATTENTION in contents:
        shown.append(graph_attention_section(contents[GRAPH_ATTENTION], folder))
    if "map" in options.analyses:
        shown.append(_map_section(found["encoders"], split, documents, folder, contents))
    about = {
        "title": title,
        "data": data,
        "settings": settings,
        "statistics": list(statistics),
        "versions": versions(),
    }
    write_report(folder, title, shown, about | contents)
    return (
        f"\nThe report is {folder / HTML_FILE}; all numbers are in {folder / JSON_FILE}, all tables in "
        f"{folder / MARKDOWN_FILE}, those of each picture in the CSV of its name.\n"
    )


def _map_section(
    measured: Sequence[dict[str, Any]],
    split: LabelledSplit,
    documents: Documents,
    folder: Path,
    contents: dict[str, Any],
) -> Section:
    names = encoder_names(measured)
    maps = {names[one["encoder"]]: one["map"][0] for one in measured}
    rows, own = one_label(documents.classes)
    classes = np.full(len(documents.rows), -1)
    classes[rows] = own
    how = measured[0]["map"][1]
    figure = plot_maps(maps, classes, split.class_names, documents.rows, folder / "map.png", how)
    note = " Of several pretraining seeds it is the first one's." if any(map(_several, measured)) else ""
    contents["map"] = {"documents": len(documents.rows), "method": how, "note": note, "rows": documents.rows}
    contents["map"]["points"] = {one["encoder"]: one["map"][0] for one in measured}
    return sections.map_section(contents["map"], figure)


def _several(measured: dict[str, Any]) -> list[str]:
    return measured["members"] if len(measured["members"]) > 1 else []


def _about_data(statistics: Sequence[dict[str, Any]], measured: Sequence[dict[str, Any]]) -> Section:
    """Size and length of the parts, and what decides each encoder's embeddings."""
    columns = ("part", "documents", "classes", "mean_words", "median_words", "max_words")
    cells = [[row["dataset"], *(sections.cell(row[name]) for name in columns)] for row in statistics]
    tables = [Table("Documents.", ["data set", *(name.replace("_", " ") for name in columns)], cells)]
    facts = ("pooling", "max_seq_length", "long_documents", "num_parameters", "dtype", "embedding_seconds")
    cells = [[one["encoder"], *(sections.cell(one["info"].get(name)) for name in facts)] for one in measured]
    tables.append(Table("Encoders.", ["encoder", *(name.replace("_", " ") for name in facts)], cells))
    return Section("Data and encoders", ["Words are what stands between white space."], tables)
