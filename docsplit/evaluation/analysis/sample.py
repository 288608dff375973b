"""What all encoders are analysed on: a sample of test documents, its sentences, halves and tags; and redundancy."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.data.sets.labelled import LabelledSplit, stratified_sample
from docsplit.data.tagging import describe_tagger, tag
from docsplit.evaluation.analysis.arguments import GRAPH_ATTENTION, AnalysisArguments
from docsplit.evaluation.analysis.attention_by_word import DocumentWords, document_words
from docsplit.evaluation.analysis.clustering import check_labels
from docsplit.evaluation.analysis.contents import RedundancyContents
from docsplit.evaluation.analysis.graph_attention import choose_document
from docsplit.evaluation.analysis.maps import check_size
from docsplit.evaluation.analysis.redundancy import content_words, redundancy_rows
from docsplit.evaluation.analysis.similarity import Sentences, choose_sentences

logger = logging.getLogger(__name__)

MAX_REDUNDANCY = 10_000  # documents


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
    """Return a number for each document, equal for equal labels: of (N,) or (N, C)."""
    return labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)


def choose_documents(
    split: LabelledSplit, options: AnalysisArguments, tagger: Any, passage_words: Sequence[int] = ()
) -> Documents:
    """Draw the sample; cut it into sentences and halves, and tag it, as far as the analyses need that.

    Args:
        tagger: of `docsplit.data.tagging.load_tagger`; None where nothing is tagged.
        passage_words: of the encoders whose graphs are shown.

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
    if GRAPH_ATTENTION in options.analyses and passage_words:
        chosen["of_graph"] = choose_document(texts, passage_words)
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


def redundancy(split: LabelledSplit, tagger: Any, seed: int) -> RedundancyContents:
    """Measure `redundancy_rows` on a random sample of the documents of all parts."""
    texts = [text for part in split.texts.values() for text in part]
    chosen = np.sort(np.random.default_rng((seed, 8)).permutation(len(texts))[:MAX_REDUNDANCY])
    sample = [texts[row] for row in chosen]
    logger.info(f"Tagging {len(sample):,} documents by {describe_tagger(tagger)}")
    tagged = ((own.lemmas, own.parts_of_speech) for own in tag(tagger, sample))
    rows, growth = redundancy_rows(content_words(tagged, [len(text.split()) for text in sample]), seed)
    sampled = f" drawn from {len(texts):,}" if len(sample) < len(texts) else ", all parts together"
    return RedundancyContents(rows, growth, len(sample), sampled, describe_tagger(tagger))
