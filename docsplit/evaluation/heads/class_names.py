"""What the names of classes say about documents without labels.

    NamedClasses.of(vectors, names)       names and documents, centred on the documents
    .spread                               whether the names tell documents apart
    .seeds(known, targets, pile)          documents that a head may take for labelled ones

A name is embedded like a document, as `name` or `name: what it is about`. Its class has a place: the mean of the name,
which counts as three labelled documents, and of the labelled documents. Each document of the pile is of the nearest
place, and the nearer half of each class are seeds. All seeds of a class weigh as 20 labelled documents where it has no
label, and less the more it has. The numbers were chosen on ten sets, in three wordings of their names
(docs/classifying.md).
"""

from dataclasses import dataclass

import numpy as np

from docsplit.runtime.vectors import unit

NAME_WEIGHT, SEEDS_WEIGHT = 3, 20  # as so many labelled documents
SEED_SHARE = 0.5  # of the documents of a class
LEAST_SPREAD = 0.6  # of names that say something
MOST_COMPARED = 1000  # documents, for the spread


@dataclass(frozen=True)
class NamedClasses:
    """Documents and the names of classes, as directions from the documents' mean.

    Attributes:
        documents: (N, H), of length one.
        names: (C, H), of length one.
    """

    documents: np.ndarray
    names: np.ndarray

    @classmethod
    def of(cls, vectors: np.ndarray, names: np.ndarray) -> "NamedClasses":
        """Centre vectors (N, H) and those of the names (C, H) on the mean of the first."""
        mean = vectors.mean(axis=0)
        return cls(unit(vectors - mean), unit(names - mean))

    @property
    def spread(self) -> float:
        """How differently the names see a document, beside how alike two documents are.

        The root mean square, over documents, of the standard deviation of their similarities to the names, divided by
        the root mean square of the similarity of two documents.
        """
        some = self.documents[np.random.default_rng(0).permutation(len(self.documents))[:MOST_COMPARED]]
        alike = some @ some.T
        np.fill_diagonal(alike, 0)
        between = np.square(alike).sum() / (len(some) * max(1, len(some) - 1))
        seen = (some @ self.names.T).var(axis=1, ddof=1).mean()
        return float(np.sqrt(seen / between)) if between else 0.0

    def seeds(
        self, known: np.ndarray, targets: np.ndarray, pile: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the seeds: rows among the pile's, their classes, and their weights beside labelled documents.

        Args:
            known: rows of labelled documents.
            targets: their class indices.
            pile: rows of documents without labels.
        """
        places = NAME_WEIGHT * self.names
        np.add.at(places, targets, self.documents[known])
        similarity = self.documents[pile] @ unit(places).T
        nearest, order = similarity.argmax(axis=1), np.argsort(-similarity.max(axis=1), kind="stable")
        counts = np.bincount(nearest, minlength=len(places))
        chosen = np.concatenate(
            [order[nearest[order] == of][: int(np.ceil(SEED_SHARE * counts[of]))] for of in range(len(places))]
        )
        classes = nearest[chosen]
        labelled = np.bincount(targets, minlength=len(places))
        each = SEEDS_WEIGHT / (1 + labelled) * len(places) / max(1, len(chosen))
        return pile[chosen], classes, np.minimum(1, each)[classes]
