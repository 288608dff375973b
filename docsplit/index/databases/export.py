"""Export an index to a vector database, which serves many people: its passages, one after another.

A database is a class that can do what `Database` says, in a file of its own, and its row in `DATABASES`. It knows
nothing of how an index lies on disk.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from tqdm.auto import tqdm

from docsplit.index.databases.milvus import Milvus
from docsplit.index.results import Exported

if TYPE_CHECKING:
    from docsplit.index.index import Index, StoredPassage

logger = logging.getLogger(__name__)

BATCH = 1000  # passages of a request


class Database(Protocol):
    """A collection of passages in a database."""

    def create(self, dimension: int, replace: bool) -> None:
        """Make the collection.

        Args:
            dimension: of the vectors, which a scalar product compares: they have length one where the encoder is
                compared by cosine.
            replace: drop a collection of this name that is there.

        Raises:
            ValueError: if there is one and `replace` is False.
        """

    def insert(self, passages: "Sequence[StoredPassage]") -> int:
        """Write passages, and return how many texts were cut to what the database holds.

        Raises:
            ValueError: if the database does not take one of them.
        """

    def count(self) -> int:
        """Count the passages that the collection holds, all that were inserted."""


# Each is called with the address of the database and the name of the collection. It raises a ValueError where its
# client is not installed, or no database answers.
DATABASES: dict[str, Callable[[str, str], Database]] = {"milvus": Milvus}


def export(index: "Index", database: str, uri: str, name: str = "documents", replace: bool = False) -> Exported:
    """Write an index into a database, as a collection of this name.

    Args:
        replace: drop a collection of this name that is there.

    Raises:
        ValueError: if the database is not known, its client is not installed, the collection is there already, or it
            does not hold all passages in the end.
    """
    if database not in DATABASES:
        raise ValueError(f"There is no database {database!r}, expected one of {', '.join(DATABASES)}.")
    collection = DATABASES[database](uri, name)
    collection.create(index.manifest.encoder["dimension"], replace)
    total, num_cut = index.num_passages(), 0
    passages = index.passages()
    with tqdm(total=total, desc=f"Writing to {uri}", unit="passage") as progress:
        while batch := list(islice(passages, BATCH)):
            num_cut += collection.insert(batch)
            progress.update(len(batch))
    count = collection.count()
    if count != total:
        raise ValueError(f"The collection {name!r} at {uri} holds {count:,} of {total:,} passages: export again.")
    if num_cut:
        logger.warning(f"{num_cut} texts were cut: a field of the database holds no more.")
    return Exported(count, num_cut)
