"""A classifier to keep: an encoder, the words of your documents, and logistic regression on a few labels and a pile.

    classifier = Classifier("sentence-transformers/all-MiniLM-L6-v2").fit(texts, labels, documents="unlabelled/")
    classifier.save("outputs/classifier")
    Classifier.load("outputs/classifier").predict(["a new document"], unsure=0.5)

Rows of length one stand beside each other; the last factor, and C, were chosen on training documents alone
(docs/classifying.md):

    words_and_tfidf      unit(e + r), the encoder and the words of all documents (`docsplit.embedding.lexical_ridge`),
                         and half of TF-IDF
    encoder_and_tfidf    e, and half of TF-IDF
    encoder, tfidf       one of them alone

With the encoder `none`, one is made of the words of all documents (`docsplit.embedding.closed_form`), and kept in the
folder; it needs no words beside it.

With 20 labels a class or more, cross-validation on the labels chooses among them; with fewer, the first is taken, for
so few labels choose by chance. Words and TF-IDF read labelled and unlabelled documents alike. The head is trained on r
by a fit without the document itself, as it will be of new ones.

The head learns from unlabelled documents too (`fit_self_trained`), except where a document may have several labels and
on TF-IDF alone, which does not group documents: there the head's first guesses mislead it. With 20 labels a class or
more, cross-validation decides whether it does; with fewer, it does not where the folds find significantly more without
it, as where the encoder cannot read the documents' language.

Folds outside of the choices, which keep near copies together, give the score, and the factor that makes scores of the
head that is kept probabilities. Their heads see the unlabelled documents, and never the ones held out. Folds of the
choice of features are cheap: they share coordinates in the space that the documents span.
"""

import json
import logging
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_matrix, hstack
from scipy.stats import binomtest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from tqdm.auto import tqdm

from docsplit.data.copies import document_id, near_copy_groups
from docsplit.data.readers.base import normalized
from docsplit.data.readers.documents import Documents, documents_of, refuse_other_than_texts, values_of
from docsplit.data.sets.labelled import folds_of, some, stratified_sample
from docsplit.data.sets.labels import LabelColumn, Labels, classes_of, majority_labels, read_labels
from docsplit.data.words import CUT, tfidf_counter
from docsplit.embedding import closed_form, lexical_ridge
from docsplit.embedding.encode import CHUNK_TEXTS, embed_documents, identity, reading_of
from docsplit.embedding.lexical_ridge import distinct
from docsplit.evaluation.heads.class_names import LEAST_SPREAD, NamedClasses
from docsplit.evaluation.heads.logistic import (
    HeldOut,
    RowSpace,
    calibration,
    fit_labelled,
    held_out,
    in_row_space,
    items_of,
    probabilities_of,
)
from docsplit.evaluation.results.bootstrap import ItemScores, interval, resample, wilson
from docsplit.modeling.encoder_with_words import TABLE, TOKENIZER, Words, add_words
from docsplit.modeling.loading import load_encoder, prompts_of, save_plain, with_words, without_words, words_of
from docsplit.runtime.files import (
    PARTIAL,
    Damaged,
    checked,
    flush_folder,
    name_failed_writes,
    read_sealed,
    seal_folder,
    versions,
    why_folder_damaged,
)
from docsplit.runtime.sharing import refuse_used
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

FEATURES: dict[str, tuple[str | None, float]] = {  # what stands beside how much of TF-IDF; the first is the best guess
    "words_and_tfidf": ("words", 0.5),
    "encoder_and_tfidf": ("encoder", 0.5),
    "encoder": ("encoder", 0.0),
    "tfidf": (None, 1.0),
}
LABELS_TO_CHOOSE = 20  # a class, on average
FOLDS, INNER_FOLDS = 5, 3
MOST_MEASURED = 1000  # labelled documents that choose, drawn from more; as many are held out
BLOCK = 8 * CHUNK_TEXTS  # documents whose features are in memory while others are labelled
MOST_UNLABELLED, MOST_TO_CHOOSE = 5000, 1000  # unlabelled documents, drawn from more; of these those of the choice
EXAMPLES = 3  # typical, and as many doubtful, documents of a class with a name
DOUBTFUL = 10  # times as probable as a document's label another has to be, for the label to look wrong
# Of what to label next
TYPICAL = 6  # labels a class, below which typical documents help more than doubtful ones
AS_DOUBTFUL = 5  # times as many doubtful documents as are named are parted into clusters
DIMENSIONS = 128  # of clusters
SELF_TRAINED = "self-trained"  # beside the features, in `Score.choice`
FILE, ARRAYS, VOCABULARY = "classifier.json", "classifier.safetensors", "vocabulary.json"
WORDS, ENCODER = "words", "encoder"  # folders
# In `FILE`, as they are
SAVED_ATTRIBUTES = (
    "identity_",
    "prompt_",
    "features_",
    "self_trained_",
    "several_",
    "scale_",
    "shift_",
    "counts_",
    "seconds_",
    "columns_",
)


@dataclass(frozen=True)
class OfClass:
    """How many documents of a class were measured, and how many of them got it."""

    label: Any
    documents: int
    found: int

    @property
    def recall(self) -> float:
        """The share that was found."""
        return self.found / self.documents


class OfName(NamedTuple):
    """What a class with a name got of all documents.

    Attributes:
        label: the class.
        documents: that it got.
        typical: the likeliest, the first first.
        doubtful: the least likely, the least first, each with the class that comes next.
    """

    label: str
    documents: int
    typical: list[str]
    doubtful: list[tuple[str, str]]


class Prediction(NamedTuple):
    """What a document gets, each label with its probability.

    Attributes:
        labels: that are given; of one label a document at most one, of several in the order of the classes.
        likeliest: the likeliest, given or not, the first first.
    """

    labels: list[tuple[Any, float]]
    likeliest: list[tuple[Any, float]]


@dataclass(frozen=True)
class HeldOutDocument:
    """What a head that did not see a labelled document says of it.

    Attributes:
        row: of the document, among the texts of `fit`.
        label: that it has; with several labels a list.
        guess: that it gets; with several labels a list.
        probability: of the guess; with several labels of the likeliest label.
        of_label: the probability of the label that it has; None with several labels.
    """

    row: int
    label: Any
    guess: Any
    probability: float
    of_label: float | None

    @property
    def is_doubtful(self) -> bool:
        """Whether the label looks wrong."""
        return self.of_label is not None and self.probability > DOUBTFUL * self.of_label


@dataclass(frozen=True)
class Score:
    """What a classifier is worth on documents that neither its head nor the choice of its features saw.

    Attributes:
        metric: accuracy; with several labels micro-F1.
        value: None where nothing could be measured, for all documents of a class are near copies of one another.
        low, high: a 95 % interval over the documents (of accuracy Wilson's, of micro-F1 by bootstrap); near copies
            count as one.
        documents: that were measured on.
        commonest: the class that most labelled documents have; None without any.
        baseline: the metric of giving it to all documents.
        sure: the share of documents that get a label with `unsure=0.5`; None with several labels.
        sure_accuracy: how many of these labels are right; None where there is none.
        classes: that were measured.
        copies_alone: classes without a score, whose documents are all near copies of one another.
        choice: the metric of all features in the choice, which saw these documents, and of the best of them
            self-trained; empty where nothing was chosen.
    """

    metric: str
    value: float | None
    low: float | None
    high: float | None
    documents: int
    commonest: Any
    baseline: float | None
    sure: float | None
    sure_accuracy: float | None
    classes: list[OfClass]
    copies_alone: list[Any]
    choice: dict[str, float]


class Classifier(ClassifierMixin, BaseEstimator):
    """Label documents, with one label each or several, by scikit-learn's conventions.

    Args:
        encoder: a SentenceTransformer or any `AutoModel`, on the Hub or here. Words that it has are fitted anew.
        features: one of `FEATURES`, or auto.
        seed: of folds.
        prompt: before each document; a saved classifier keeps it. Default: the encoder's own.
        max_seq_length: tokens that the encoder reads of a document. Default: its own.

    Attributes:
        classes_: (C,) labels, sorted.
        several_: whether a document may have several labels, or none.
        features_: that were chosen.
        self_trained_: whether the head learnt from documents without labels.
        score_: on documents that were held out.
        labelled_: (N,) `document_id` of the labelled documents.
        held_out_: these documents by their rows, after `fit`; of more than 1,000 labelled ones a sample.
        examples_: of each class documents that show what its name found, after `fit` with names; else nothing.
        counts_: documents that were read and left out.
        seconds_: of each part.
        columns_: of tables, with the texts of documents; several are joined.

    Example:
        >>> from docsplit import Classifier
        >>> texts = ["boats in the harbour", "a sail in the storm", "bread and butter", "sugar in the dough"]
        >>> labels = ["sea", "sea", "kitchen", "kitchen"]
        >>> classifier = Classifier("sentence-transformers/all-MiniLM-L6-v2").fit(texts, labels)
        >>> classifier.predict(["bread for a cake"]).tolist()
        ['kitchen']
    """

    def __init__(
        self,
        encoder: str = "",
        features: str = "auto",
        seed: int = 0,
        prompt: str | None = None,
        max_seq_length: int | None = None,
    ):
        self.encoder, self.features, self.seed, self.prompt = encoder, features, seed, prompt
        self.max_seq_length = max_seq_length

    # --- Fit ---

    def fit(
        self,
        texts: Iterable[Any] = (),
        labels: Iterable[Any] = (),
        documents: Documents = (),
        classes: Sequence[str] | None = None,
    ) -> "Classifier":
        """Fit words, choose features, measure them, and train the head.

        Args:
            texts: N documents; none where names of classes do. Empty ones (None too) and copies are left out.
            labels: of each, a text, whole number or bool, or a list of them where a document may have several (or a
                vector of 0 and 1), as `docsplit.data.sets.labels.read_labels` reads them; or a `LabelColumn` of each
                table. Documents without (None, NaN, an empty text) count among the unlabelled. Copies with several
                labels have the majority's; ties are left out.
            documents: without labels: texts, or a folder or file. Of more than 5,000, as many are drawn.
            classes: all classes by their names, each `name` or `name: what it is about`, of which the head learns too.
                None: names say nothing.

        Raises:
            ValueError: naming the labels, classes or options that do not go, and names that say nothing of the
                documents.
        """
        if self.features not in ("auto", *FEATURES):
            raise ValueError(f"--features has no {self.features}. Choose among auto, {', '.join(FEATURES)}.")
        texts = checked_texts(texts)
        self.seconds_: dict[str, float] = {}
        self.columns_ = ["text"]
        refuse_other_than_columns(labels)
        are_tables = isinstance(labels, list | tuple) and any(isinstance(column, LabelColumn) for column in labels)
        columns, self.several_ = read_labels(*(labels if are_tables else [LabelColumn(labels)]))
        found = [label for column in columns for label in column]
        if len(texts) != len(found):
            raise ValueError(f"{len(texts):,} texts came with {len(found):,} labels: give one label a text.")
        # Labelled documents, each once, in an order of their own, and all others
        there = [row for row, label in enumerate(found) if label is not None and texts[row].strip()]
        ids = {row: document_id(texts[row]) for row in there}
        majority = majority_labels([*ids.values()], [found[row] or () for row in there])
        of_ids: dict[int, int] = {}
        for row in sorted(there, key=lambda row: texts[row]):
            of_ids.setdefault(ids[row], row)
        labels_of = {row: majority.get(identity, found[row]) for identity, row in of_ids.items()}
        chosen = {row: label for row, label in labels_of.items() if label is not None}
        labelled = [texts[row] for row in chosen]
        others = [texts[row] for row, label in enumerate(found) if label is None and texts[row].strip()]
        others += [normalized(document.text) for document in documents_of(documents)]
        everything = [*labelled, *sorted(others)]
        everything = [everything[row] for row in distinct(everything)[0]]  # the labelled come first
        unlabelled = len(everything) - len(labelled)
        if unlabelled > MOST_UNLABELLED:
            drawn = np.random.default_rng(self.seed).choice(unlabelled, MOST_UNLABELLED, replace=False)
            everything = labelled + [everything[len(labelled) + row] for row in np.sort(drawn)]
        settled = Counter(label is not None for label in majority.values())
        self.counts_ = {
            "labelled": len(labelled),
            "unlabelled": len(everything) - len(labelled),
            "unlabelled that were not drawn": unlabelled + len(labelled) - len(everything),
            "rows without a label": sum(label is None for label in found),
            "labelled rows without text": sum(label is not None for label in found) - len(there),
            "copies of labelled rows": len(there) - len(of_ids),
            "labelled by a majority": settled[True],
            "left out as ties": settled[False],
        }
        lines = None if classes is None else lines_of_classes(classes)
        self.classes_, targets = encode_labels([*chosen.values()], self.several_, len(found), lines)
        rows = list(chosen)
        self.labelled_ = np.array([ids[row] for row in rows])
        features = self.fit_features(everything)
        groups = near_copy_groups(labelled)
        self.counts_["near copies of labelled rows"] = len(groups) - len(np.unique(groups))
        self.held_out_: list[HeldOutDocument] = []
        self.examples_: list[OfName] = []
        named = None if lines is None else self._named(features, [lines[name] for name in self.classes_])
        with self._timed("heads"):
            self.fit_heads(features, targets, groups, named)
        if named is not None:
            self.examples_ = self._examples(features[self.features_], everything)
            nearest = (named.documents[: len(targets)] @ named.names.T).argmax(axis=1)
            if (found := (nearest == targets).sum()) < len(targets) * (self.score_.value or 0) / 2:
                logger.warning(
                    f"The names alone find {found} of {len(targets):,} labelled documents: they may mean something "
                    "else than the labels do. Compare the score with that of a fit without names."
                )
        held_out = [replace(document, row=rows[document.row]) for document in self.held_out_]
        self.held_out_ = sorted(held_out, key=lambda document: document.row)
        return self

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds_[part] = round(time.perf_counter() - started, 2)

    def fit_features(self, documents: list[str]) -> dict[str, csr_matrix]:
        """Fit what needs no labels, and return the features that there can be, (N, F) by name.

        Args:
            documents: N, labelled or not.
        """
        wanted = {self.features: FEATURES[self.features]} if self.features != "auto" else FEATURES
        if self.encoder == closed_form.NOTHING:
            if self.prompt is not None or self.max_seq_length is not None:
                raise ValueError(
                    "An encoder of the documents alone has no prompt and reads texts whole: leave these out."
                )
            wanted = {name: of for name, of in wanted.items() if of[0] != "words"}
        bases: dict[str | None, np.ndarray] = {None: np.zeros((len(documents), 0), dtype=np.float32)}
        self.model_, self.identity_, self.prompt_ = None, None, None
        if any(base for base, _ in wanted.values()):
            with self._timed("make" if self.encoder == closed_form.NOTHING else "load"):
                loaded = self._encoder(documents)
                self.model_ = without_words(loaded)
                self.identity_, self.prompt_ = identity(self.model_), prompts_of(self.model_)[0]
                if words_of(loaded) is not None:
                    logger.info(f"{self.encoder} has words: those of these documents take their place.")
            logger.info(f"{self.encoder}: {reading_of(self.model_, documents)}.")
            with self._timed("embed"):
                bases["encoder"] = unit(self._embed(documents))
            if any(base == "words" for base, _ in wanted.values()):
                with self._timed("words"):
                    words = self._fit_words(documents, bases["encoder"])
                bases |= {} if words is None else {"words": words}
        self.tfidf_ = tfidf_counter(dtype=np.float32)
        beside: Any = None
        try:
            beside = self.tfidf_.fit_transform(documents)
        except ValueError:  # its only error for texts
            logger.warning("No document has a word that TF-IDF counts: it is left out.")
        features = {
            name: beside_each_other(bases[base], factor * beside if factor else None)
            for name, (base, factor) in wanted.items()
            if base in bases and (beside is not None or not factor)
        }
        if not features:
            raise ValueError(f"--features {self.features} cannot be made of these documents: choose auto.")
        return features

    def _encoder(self, documents: list[str]) -> Any:
        if self.encoder != closed_form.NOTHING:
            return load_encoder(str(self.encoder), max_seq_length=self.max_seq_length, prompt=self.prompt)
        words, facts = closed_form.fit_to_texts(documents)
        logger.info(facts.sentence())
        return lexical_ridge.static_encoder(words)

    def _fit_words(self, texts: list[str], vectors: np.ndarray) -> np.ndarray | None:
        """Put words beside the encoder, and return its vectors with them; None where there are none to learn."""
        try:
            ridge = lexical_ridge.fit(self.model_, texts, vectors)
        except ValueError as error:  # too few documents, or no fast tokenizer
            logger.warning(f"The encoder stays without words: {error}")
            return None
        if ridge.facts.explains_nothing:
            logger.warning("The encoder stays without words: they explain nothing of its vectors.")
            return None
        self.model_ = with_words(self.model_, ridge.words, ridge.facts.weight)
        as_if_new = torch.from_numpy(ridge.leave_one_out())
        return add_words(torch.from_numpy(vectors), as_if_new, ridge.facts.weight).numpy()

    def _named(self, features: dict[str, csr_matrix], lines: list[str]) -> NamedClasses:
        """Embed the names of classes as documents, beside the first features that an encoder makes."""
        name = next((name for name in features if FEATURES[name][0]), None)
        if name is None:
            raise ValueError("Names of classes are read by an encoder: choose --features other than tfidf.")
        if (rows := features[name].shape[0]) < 10:
            raise ValueError(
                f"Names of classes are read beside documents, and there are {rows}: give 10 or more (--documents), "
                "better hundreds."
            )
        vectors = unit(self._embed(lines, FEATURES[name][0] == "words"))
        named = NamedClasses.of(features[name][:, : vectors.shape[1]].toarray(), vectors)
        if named.spread < LEAST_SPREAD:
            raise ValueError(
                f"These names of classes do not tell the documents apart (spread {named.spread:.2f}, that "
                f"of names that do is at least {LEAST_SPREAD}): {some(lines)}. Say what each is about, in lines such "
                "as `rivers: a river, a stream or a lake`, take an encoder that reads their language, or label "
                "documents and leave the names out."
            )
        return named

    def _examples(self, features: csr_matrix, texts: list[str]) -> list[OfName]:
        """Return typical and doubtful documents of each class."""
        probabilities = self._probabilities(features)
        best, names = probabilities.argmax(axis=1), self.classes_.tolist()
        second = np.argsort(-probabilities, axis=1, kind="stable")[:, 1]
        examples = []
        for column, name in enumerate(names):
            rows = np.flatnonzero(best == column)
            rows = rows[np.argsort(-probabilities[rows, column], kind="stable")]
            half = min(EXAMPLES, (len(rows) + 1) // 2)
            doubtful = [(texts[row], names[second[row]]) for row in rows[half:][-EXAMPLES:][::-1]]
            examples.append(OfName(name, len(rows), [texts[row] for row in rows[:half]], doubtful))
        return examples

    def fit_heads(
        self,
        features: dict[str, csr_matrix],
        targets: np.ndarray,
        groups: np.ndarray | None = None,
        named: NamedClasses | None = None,
    ) -> None:
        """Choose what a head learns from, fit it, and measure and calibrate heads like it on folds outside the choice.

        Args:
            features: (N + U, F) of the labelled documents and those without labels, by name.
            targets: (N,), or with several labels (N, C).
            groups: (N,) of near copies, which no fold parts; None: there are none.
            named: the names of the classes; then there is nothing to choose.
        """
        several, count, known = self.several_, len(self.classes_), len(targets)
        groups = np.arange(known) if groups is None else groups
        names, labels = list(features), targets.sum() if several else known
        is_chosen = labels >= LABELS_TO_CHOOSE * count and named is None
        names = names if is_chosen else names[:1]
        drawn = stratified_sample(np.zeros(known) if several else targets, MOST_MEASURED, self.seed)
        points = {name: in_row_space(features[name][drawn])[0] for name in names if is_chosen}
        space_of = lru_cache(maxsize=None)(lambda name: RowSpace.of(features[name]))
        unlabelled = np.arange(known, features[names[0]].shape[0])
        few = np.random.default_rng(self.seed).permutation(unlabelled)[:MOST_TO_CHOOSE]

        def can_self_train(name: str) -> bool:
            return len(unlabelled) > 0 and not several and FEATURES[name][0] is not None

        def best(train: np.ndarray) -> tuple[str, bool, dict[str, float]]:
            """Choose features, and whether to self-train, by these rows alone."""
            at = np.flatnonzero(np.isin(drawn, train))
            of_drawn = targets[drawn[at]]
            folds = list(folds_of(of_drawn, groups[drawn[at]], INNER_FOLDS, self.seed))
            if not is_chosen or not folds or (len(names) == 1 and not can_self_train(names[0])):
                return names[0], can_self_train(names[0]), {}

            def value_of(rows: Any) -> float:
                held = held_out(rows, of_drawn, count, folds)
                return float(items_of(held.calibrated(), held.targets).of_runs()[0])

            values = {name: value_of(point[at]) for name, point in points.items()}
            name = max(names, key=lambda name: values[name])  # the first of equals
            if not can_self_train(name):
                return name, False, values
            self_trained = value_of(space_of(name).coordinates[np.concatenate([drawn[at], few])])
            return name, self_trained > values[name], values | {SELF_TRAINED: self_trained}

        def learnt(name: str, self_trained: bool) -> Any:
            return space_of(name).coordinates[: None if self_trained else known]

        # Of many documents two folds hold out enough, and their heads see nearly what the one that is kept sees
        number = max(FOLDS, 2 * known // MOST_MEASURED)
        enough = max(2, math.ceil(number * MOST_MEASURED / max(1, known)))
        folds = list(islice(folds_of(targets, groups, number, self.seed), enough))
        self.features_, self.self_trained_, choice = best(np.arange(known))
        chosen = [best(train)[:2] for train, _ in folds]
        measured = held_out([learnt(*of_fold) for of_fold in chosen], targets, count, folds, named)
        if self.self_trained_ and not choice and named is None:
            alone = held_out(in_row_space(features[self.features_][:known])[0], targets, count, folds)
            right, right_alone = (of.scores.argmax(axis=1) == of.targets for of in (measured, alone))
            differ, better = int((right != right_alone).sum()), int((right_alone & ~right).sum())
            # A sign test, since few labels choose by chance
            if differ and binomtest(better, differ, alternative="greater").pvalue < 0.05:
                choice = {self.features_: float(right_alone.mean()), SELF_TRAINED: float(right.mean())}
                measured, self.self_trained_ = alone, False
                chosen = [(self.features_, False)] * len(folds)
        kept, learnt_from = measured, learnt(self.features_, self.self_trained_)
        if set(chosen) != {(self.features_, self.self_trained_)}:
            kept = held_out(learnt_from, targets, count, folds, named)
        self.scale_, self.shift_ = calibration(kept.scores[kept.calibrate], kept.targets[kept.calibrate])
        self.score_ = self._score(measured, targets, groups, choice)
        self.held_out_ = self._of_documents(measured)
        (coefficients, self.intercepts_), _ = fit_labelled(learnt_from, targets, count, np.arange(known), named)
        self.coefficients_ = space_of(self.features_).weights(coefficients)

    def _score(self, held: HeldOut, targets: np.ndarray, groups: np.ndarray, choice: dict[str, float]) -> Score:
        """Sum up what was measured on documents that were held out."""
        names, several, count = self.classes_.tolist(), self.several_, len(self.classes_)
        is_of_class = targets if several else np.eye(count, dtype=np.int64)[targets]  # (N, C)
        alone = [
            name for name, rows in zip(names, is_of_class.T == 1) if rows.sum() > 1 == len(np.unique(groups[rows]))
        ]
        commonest = int(is_of_class.sum(axis=0).argmax())
        if not len(held.targets):
            metric, most = "micro-F1" if several else "accuracy", names[commonest] if len(targets) else None
            return Score(metric, None, None, None, 0, most, None, None, None, [], alone, choice)
        probabilities = held.calibrated()
        items = items_of(probabilities, held.targets)
        group_of = np.unique(groups[held.rows], return_inverse=True)[1]  # copies are drawn together
        numerators, denominators = (
            np.bincount(group_of, of_documents[0]) for of_documents in (items.numerators, items.denominators)
        )
        value = float(items.of_runs()[0])
        if several:
            low, high = interval(resample([ItemScores(numerators[None], denominators[None])])[0])
        else:  # as many independent documents as there would be of groups of equal size (Kish 1965)
            low, high = wilson(value, denominators.sum() ** 2 / np.square(denominators).sum())
        always = np.zeros((len(held.targets), count)) + np.eye(count)[commonest]
        is_of_class = held.targets if several else np.eye(count, dtype=np.int64)[held.targets]
        highest = probabilities.max(axis=1)
        is_sure = highest >= 0.5
        right = is_of_class[np.arange(len(highest)), probabilities.argmax(axis=1)]
        given = probabilities >= 0.5 if several else probabilities == highest[:, None]
        found = (given * is_of_class).sum(axis=0).tolist()
        return Score(
            metric="micro-F1" if several else "accuracy",
            value=value,
            low=low,
            high=high,
            documents=len(held.targets),
            commonest=names[commonest],
            baseline=float(items_of(always, held.targets).of_runs()[0]),
            sure=None if several else float(is_sure.mean()),
            sure_accuracy=float(right[is_sure].mean()) if is_sure.any() and not several else None,
            classes=[OfClass(*of) for of in zip(names, is_of_class.sum(axis=0).tolist(), found) if of[1]],
            copies_alone=alone,
            choice=choice,
        )

    def _of_documents(self, held: HeldOut) -> list[HeldOutDocument]:
        """List what was measured, a document a line."""
        if not len(held.targets):
            return []
        probabilities, names = held.calibrated(), self.classes_.tolist()
        highest = probabilities.max(axis=1).tolist()
        if self.several_:
            labels, guesses = (
                [[names[column] for column in np.flatnonzero(row)] for row in given]
                for given in (held.targets, probabilities >= 0.5)
            )
            of_label = [None] * len(labels)
        else:
            labels, guesses = ([names[column] for column in of] for of in (held.targets, probabilities.argmax(axis=1)))
            of_label = probabilities[np.arange(len(labels)), held.targets].tolist()
        return [HeldOutDocument(*of) for of in zip(held.rows.tolist(), labels, guesses, highest, of_label)]

    # --- Predict ---

    def _embed(self, texts: list[str], with_its_words: bool = False) -> np.ndarray:
        model: Any = self.model_ if with_its_words else without_words(self.model_)
        truncate_dim, model.truncate_dim = model.truncate_dim, None  # words were fitted to whole vectors
        try:
            return embed_documents(model, texts, show_progress=len(texts) > 100)[0]
        finally:
            model.truncate_dim = truncate_dim

    def features_of(self, texts: list[str], name: str) -> csr_matrix:
        """Return these features of new documents, (N, F)."""
        base, factor = FEATURES[name]
        has_text = np.array([bool(text.strip()) for text in texts], dtype=bool)
        vectors = np.zeros((len(texts), 0), dtype=np.float32)
        if base is not None:
            vectors = unit(self._embed(texts, base == "words")) * has_text[:, None]
        return beside_each_other(vectors, factor * self.tfidf_.transform(texts) if factor else None)

    def predict_proba(self, texts: Sequence[str]) -> np.ndarray:
        """Return the probability of each class, (N, C); with several labels each is of its own."""
        if not (texts := checked_texts(texts)):
            return np.zeros((0, len(self.classes_)))
        starts = range(0, len(texts), BLOCK)
        progress = tqdm(starts, desc="Predicting", unit="block", disable=len(starts) == 1)
        blocks = (self.features_of(texts[start : start + BLOCK], self.features_) for start in progress)
        return np.concatenate([self._probabilities(features) for features in blocks])

    def _probabilities(self, features: csr_matrix) -> np.ndarray:
        scores = features @ self.coefficients_ + self.intercepts_
        return probabilities_of(scores, self.scale_, self.shift_, self.several_)

    def predict(
        self, texts: Sequence[str], unsure: float = 0.0, threshold: float = 0.5
    ) -> np.ndarray | list[list[Any]]:
        """Return the label of each document, (N,); with several labels a list of them.

        Args:
            unsure: a document whose best label has a lower probability gets None, and so does one without text.
            threshold: of several labels, the probability from which one is given.
        """
        given = [[label for label, _ in of.labels] for of in self.predictions(texts, unsure, threshold)]
        if self.several_:
            return given
        labels = [labels[0] if labels else None for labels in given]
        return np.array(labels, dtype=object if None in labels else self.classes_.dtype)

    def predictions(
        self, texts: Sequence[str], unsure: float = 0.0, threshold: float = 0.5, top: int = 0
    ) -> list[Prediction]:
        """Return the labels that `predict` gives, each with its probability, and the `top` likeliest ones.

        A document without text has none.
        """
        for name, value in (("unsure", unsure), ("threshold", threshold)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}: give a probability, from 0 to 1.")
        if self.several_ and unsure:
            raise ValueError("This classifier gives several labels: threshold is the least probability of each.")
        if not self.several_ and threshold != 0.5:
            raise ValueError("This classifier gives one label: unsure is its least probability.")
        texts, names = checked_texts(texts), self.classes_.tolist()
        found = []
        for text, row in zip(texts, self.predict_proba(texts)):
            order = (np.argsort(-row, kind="stable") if text.strip() else np.zeros(0, dtype=np.int64)).tolist()
            given = sorted(column for column in order if row[column] >= threshold) if self.several_ else order[:1]
            labels, likeliest = ([(names[column], float(row[column])) for column in of] for of in (given, order[:top]))
            found.append(Prediction([of for of in labels if of[1] >= unsure], likeliest))
        return found

    def to_label(self, texts: Sequence[str], count: int = 20) -> list[tuple[int, Any, float]]:
        """Name the documents whose labels help most: their rows, likeliest labels and the probabilities of these.

        Few labels need typical documents, more labels doubtful ones (Hacohen et al. 2022): below six labels a class
        those nearest to the centres of clusters that have no labelled document, the largest first; above, the same of
        those whose two likeliest classes are closest. Of more than 5,000 documents without a label as many are drawn.

        Args:
            texts: documents; those with a label are known, and taken for clusters.

        Raises:
            ValueError: if documents may have several labels.
        """
        if self.several_:
            raise ValueError("Documents with several labels cannot be put in order: label some at random.")
        texts = checked_texts(texts)
        rows = np.array([row for row in distinct(texts)[0] if texts[row].strip()], dtype=np.int64)
        is_labelled = np.isin([document_id(texts[row]) for row in rows], self.labelled_)
        if is_labelled.all():
            return []
        few = self.counts_["labelled"] < TYPICAL * len(self.classes_)
        known = rows[is_labelled] if few else rows[:0]  # which doubtful documents need not
        drawn = np.random.default_rng(self.seed).permutation(rows[~is_labelled])[:MOST_UNLABELLED]
        if left := int((~is_labelled).sum()) - len(drawn):
            logger.info(f"{left:,} documents without a label were not looked at: {len(drawn):,} are drawn by chance.")
        rows, is_labelled = np.concatenate([known, drawn]), np.arange(len(known) + len(drawn)) < len(known)
        features = self.features_of([texts[row] for row in rows], self.features_)
        probabilities = self._probabilities(features)
        likeliest, names = probabilities.argmax(axis=1), self.classes_.tolist()
        chosen = next_to_label(features, probabilities, is_labelled, count, few, self.seed)
        return [(int(rows[of]), names[likeliest[of]], float(probabilities[of, likeliest[of]])) for of in chosen]

    # --- Files ---

    def save(self, folder: str | Path, include_encoder: bool = False) -> None:
        """Write a folder, whole or not at all: safetensors and JSON.

        Args:
            folder: that does not exist, or is empty.
            include_encoder: write the encoder too; else its name and a hash of its weights.

        Raises:
            ValueError: if there is something in the folder.
        """
        folder = Path(folder)
        refuse_used(folder, "name another folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        base, factor = FEATURES[self.features_]
        arrays = {"coefficients": self.coefficients_, "intercepts": self.intercepts_, "labelled": self.labelled_}
        with (
            tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=PARTIAL, dir=folder.parent) as place,
            name_failed_writes(folder),
        ):
            new = Path(place) / "classifier"
            new.mkdir()
            if factor:
                arrays["idf"] = self.tfidf_.idf_
                vocabulary = sorted(self.tfidf_.vocabulary_, key=self.tfidf_.vocabulary_.__getitem__)
                (new / VOCABULARY).write_text(json.dumps(vocabulary), encoding="utf-8")
            save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, new / ARRAYS)
            include_encoder = include_encoder or self.encoder == closed_form.NOTHING
            weight, is_included = None, include_encoder and base is not None
            if base == "words":
                (new / WORDS).mkdir()
                words_of(self.model_).save(new / WORDS)  # type: ignore[union-attr]
                weight = self.model_[-1].weight  # type: ignore[index]
            if is_included:
                save_plain(self.model_, new / ENCODER)
            about = {name: getattr(self, name) for name in SAVED_ATTRIBUTES}
            is_here = self.encoder != closed_form.NOTHING and Path(self.encoder).exists()
            about |= {"encoder": str(Path(self.encoder).resolve()) if is_here else self.encoder}
            about |= {"is_included": is_included, "weight": weight, "classes": self.classes_.tolist()}
            about |= {"max_seq_length": self.max_seq_length}
            seal_folder(new, FILE, **about, cut=CUT, score=asdict(self.score_), versions=versions())
            flush_folder(new)
            if folder.is_dir():
                folder.rmdir()
            new.rename(folder)

    @classmethod
    def load(cls, folder: str | Path, encoder: str | None = None) -> "Classifier":
        """Load what `save` wrote.

        Args:
            encoder: where the encoder is now. Default: in the folder, or where it was.

        Raises:
            ValueError: if the folder is none of a classifier, is damaged, or was fitted on words that were cut in
                another way; or if the encoder is another one.
        """
        folder = Path(folder)
        if not (folder / FILE).is_file():
            raise ValueError(f"{folder} is no classifier: it has no {FILE}. `classify.py fit` writes one.")
        about = read_sealed(folder / FILE)
        if reason := why_folder_damaged(folder, FILE):
            raise Damaged(f"{folder} is damaged: {reason}. Fit the classifier again.")
        if about.get("cut") != CUT:
            raise ValueError(f"{folder} is of a version that cut words in another way: fit the classifier again.")
        place = encoder or (str(folder / ENCODER) if about["is_included"] else about["encoder"])
        given = {"prompt": about["prompt_"], "max_seq_length": about["max_seq_length"]}
        is_from_nothing = about["encoder"] == closed_form.NOTHING
        classifier = cls(closed_form.NOTHING if is_from_nothing else place, about["features_"], **given)
        arrays = load_file(folder / ARRAYS)
        classifier.model_ = None
        for name in SAVED_ATTRIBUTES:
            setattr(classifier, name, about[name])
        for name in ("coefficients", "intercepts", "labelled"):
            setattr(classifier, f"{name}_", arrays[name])
        classifier.classes_ = array_of(about["classes"])
        classifier.score_ = checked(about["score"], Score, f"{folder / FILE}: score")
        base, factor = FEATURES[classifier.features_]
        if base is not None:
            plain = without_words(load_encoder(place, **given))
            if identity(plain) != about["identity_"]:
                raise ValueError(
                    f"{place} is another encoder than {folder} was fitted with (its weights or settings differ): name "
                    "the one it was, with --model, or fit the classifier again."
                )
            classifier.model_ = plain
            if base == "words":
                words = Words.load(str(folder / WORDS / TABLE), str(folder / WORDS / TOKENIZER))
                classifier.model_ = with_words(plain, words, about["weight"])
        if factor:
            vocabulary = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
            classifier.tfidf_ = tfidf_counter(dtype=np.float32, vocabulary=vocabulary)
            classifier.tfidf_.idf_ = arrays["idf"]
        return classifier


# --- Labels ---


def checked_texts(texts: Iterable[Any]) -> list[str]:
    """List the documents of a call, in a list or a column of any library; one that is no text, such as None, is empty.

    Raises:
        ValueError: for a table, paths, one text, and texts by id.
    """
    refuse_other_than_columns(texts)
    return [normalized(text) if isinstance(text, str) else "" for text in values_of(texts)]


def refuse_other_than_columns(values: Any) -> None:
    """Refuse a table, a set, one text and what has ids, in place of a value for each document.

    Raises:
        ValueError: saying what it is.
    """
    refuse_other_than_texts(values)
    if isinstance(values, str | Mapping):
        given = "one text" if isinstance(values, str) else "a mapping by id"
        raise ValueError(f"The documents, or labels, are {given}: give a list with one for each document.")


def lines_of_classes(classes: Sequence[str]) -> dict[str, str]:
    """Return the lines of classes, `name` or `name: what it is about`, by their names.

    Raises:
        ValueError: for fewer than two, for names that stand there twice, and for what can be no label.
    """
    refuse_other_than_texts(classes)
    if isinstance(classes, str | Mapping) or not all(isinstance(line, str) for line in classes):
        raise ValueError("Names of classes are a list of texts, each `name` or `name: what it is about`.")
    lines = [" ".join(normalized(line).split()) for line in classes if line.strip()]
    parts = [re.split(r":(?: |$)|\uff1a", line, maxsplit=1)[0] for line in lines]  # a URL and 10:30 are whole names
    (labels,), _ = read_labels(LabelColumn(parts, source="the names of classes"))
    names = [str(label[0]) if label else "" for label in labels]
    if twice := [line for name, line in zip(names, lines) if names.count(name) > 1 or not name]:
        raise ValueError(
            f"Each class needs a name of its own before the colon, but these do not have one: {some(twice)}."
        )
    if len(lines) < 2:
        raise ValueError(f"There are names of {len(lines)} classes: give at least two, a line each.")
    return dict(zip(names, lines))


def encode_labels(
    labels: list[Labels], several: bool, rows: int, named: Iterable[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes (C,), and targets: class indices (N,), or with several labels 0 and 1, (N, C).

    Args:
        rows: that were read, for the message.
        named: all classes, if they have names; then they need no labels.

    Raises:
        ValueError: for fewer than two classes, and for classes with a single document; for labels without a name.
    """
    if named is not None:
        if several:
            raise ValueError("Names of classes are for documents with one label each: leave them out.")
        columns = {label: column for column, label in enumerate(sorted(named))}
        given = [str(label) for (label,) in labels]  # 1 is the class named 1
        if without := sorted({*given} - {*columns}):
            raise ValueError(
                f"These labels are no names of classes: {some(without)}. The names are {some([*columns])}."
            )
        return array_of([*columns]), np.array([columns[label] for label in given], dtype=np.int64)
    if not labels:
        raise ValueError(f"None of the {rows:,} rows has a text and a label: name their columns, or label some.")
    classes = classes_of(labels, "the labelled rows")
    counts = Counter(label for of_row in labels for label in of_row)
    if scarce := [str(label) for label in classes if counts[label] < 2]:
        raise ValueError(f"These classes have one document: {some(scarce)}. Label another of each, or leave them out.")
    index = {label: column for column, label in enumerate(classes)}
    if not several:
        return array_of(classes), np.array([index[label] for (label,) in labels])
    targets = np.zeros((len(labels), len(classes)), dtype=np.int64)
    for row, of_row in enumerate(labels):
        targets[row, [index[label] for label in of_row]] = 1
    return array_of(classes), targets


def next_to_label(
    features: csr_matrix, probabilities: np.ndarray, is_labelled: np.ndarray, count: int, few: bool, seed: int
) -> np.ndarray:
    """Return the rows whose labels help most, at most this many: typical or doubtful ones (`Classifier.to_label`).

    Args:
        features: (N, F).
        probabilities: (N, C).
        is_labelled: (N,) bool; such rows are not returned.
        few: whether there are few labels, and typical documents help most.
    """
    two = np.sort(probabilities, axis=1)[:, -2:]
    order = np.argsort(two[:, 1] - two[:, 0], kind="stable")  # the most doubtful first
    order = order[~is_labelled[order]]
    if len(order) <= count:
        return order
    candidates = np.arange(len(order) + is_labelled.sum()) if few else order[: AS_DOUBTFUL * count]
    first = candidates[central(features[candidates], is_labelled[candidates], count, seed)]
    return np.concatenate([first, order[~np.isin(order, first)]])[:count]


def central(features: csr_matrix, is_known: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return at most this many rows, each of a cluster of its own and nearest to its centre.

    Clusters with fewest known rows come first, and of these the largest.

    Args:
        features: (N, F).
        is_known: (N,) bool; such rows are not returned.
    """
    if not features.nnz:
        return np.zeros(0, dtype=np.int64)
    points = TruncatedSVD(min(DIMENSIONS, *features.shape), random_state=seed).fit_transform(features)
    number = min(int(is_known.sum()) + count, len(points))
    clusters = KMeans(number, n_init=1, random_state=seed).fit(points)
    of_row = clusters.labels_
    distances = np.square(points - clusters.cluster_centers_[of_row]).sum(axis=1)
    sizes, known = (np.bincount(of_row, weights, number) for weights in (None, is_known))
    nearest = [row for row in np.argsort(distances, kind="stable") if not is_known[row]]
    first = {of_row[row]: row for row in reversed(nearest)}
    return np.array([first[of] for of in sorted(first, key=lambda of: (known[of], -sizes[of]))][:count])


def array_of(classes: list[Any]) -> np.ndarray:
    """Return classes as an array that has exactly them: NumPy makes floats of whole numbers from 2^63 on."""
    array = np.array(classes)
    return array if array.tolist() == classes else np.array(classes, dtype=object)


# --- Features ---


def beside_each_other(vectors: np.ndarray, words: csr_matrix | None) -> csr_matrix:
    """Join vectors (N, H) and words (N, V) to rows (N, H + V)."""
    return csr_matrix(vectors) if words is None else hstack([csr_matrix(vectors), words], format="csr")
