"""Export an index to Milvus, a vector database that serves many people: its passages, one after another.

Milvus is a server (http://host:19530), or a file of milvus-lite (notes.db). Another database is another class with the
same methods, and its row in `DATABASES`.
"""

import logging
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from docsplit.index.results import Exported

if TYPE_CHECKING:
    from docsplit.index.index import Index, StoredPassage

logger = logging.getLogger(__name__)

BATCH = 1000  # passages of a request
LONGEST_ID, LONGEST_TEXT = 1024, 65_535  # bytes; the latter is what a VARCHAR holds


class Milvus:
    """A collection with the fields id, document, title, text and vector, and an index on the vectors.

    Args:
        uri: of the server, a user and password in it, or a file's path that ends in .db.
        name: of the collection.

    Raises:
        ValueError: if pymilvus is not installed, or the server does not answer.
    """

    def __init__(self, uri: str, name: str):
        try:
            from pymilvus import MilvusClient
            from pymilvus.exceptions import MilvusException
        except ImportError as error:
            raise ValueError("Milvus is written to by pymilvus, which is not there: pip install pymilvus.") from error
        try:
            self.client = MilvusClient(uri=uri)
        except (MilvusException, OSError) as error:
            raise ValueError(f"No Milvus answers at {uri}: {' '.join(str(error).split())}") from error
        self.uri, self.name = uri, name

    def create(self, dimension: int, replace: bool) -> None:
        """Make the collection.

        Args:
            dimension: of the vectors, which a scalar product compares: they have length one where the encoder is
                compared by cosine.
            replace: drop a collection of this name that is there.

        Raises:
            ValueError: if there is one and `replace` is False.
        """
        from pymilvus import DataType

        if self.client.has_collection(self.name):
            if not replace:
                raise ValueError(
                    f"There is a collection {self.name!r} at {self.uri} already: --replace drops it, --name chooses."
                )
            self.client.drop_collection(self.name)
        schema = self.client.create_schema(auto_id=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
        for field, longest in (("document", LONGEST_ID), ("title", LONGEST_ID), ("text", LONGEST_TEXT)):
            schema.add_field(field, DataType.VARCHAR, max_length=longest)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        indexed = self.client.prepare_index_params()
        indexed.add_index("vector", index_type="AUTOINDEX", metric_type="IP")  # inner product
        self.client.create_collection(self.name, schema=schema, index_params=indexed)

    def insert(self, passages: "Sequence[StoredPassage]") -> int:
        """Write passages, and return how many texts were cut to what a field holds.

        Raises:
            ValueError: if an id is too long.
        """
        rows = []
        for passage in passages:
            if len(passage.id.encode(errors="replace")) > LONGEST_ID:
                raise ValueError(f"The id {passage.id[:40]!r}... is longer than {LONGEST_ID} bytes.")
            fields = {"id": passage.id, "document": passage.document, "title": passage.title, "text": passage.text}
            cut = {name: _cut(value, LONGEST_TEXT if name == "text" else LONGEST_ID) for name, value in fields.items()}
            rows.append({**cut, "vector": passage.vector.tolist()})
        self.client.insert(self.name, rows)
        return sum(row["text"] != passage.text for row, passage in zip(rows, passages))

    def count(self) -> int:
        """Count the passages that the collection holds."""
        self.client.flush(self.name)
        return int(self.client.query(self.name, output_fields=["count(*)"])[0]["count(*)"])


def _cut(text: str, longest: int) -> str:
    """Keep as much of a text as its UTF-8 has bytes for."""
    return text.encode(errors="replace")[:longest].decode(errors="ignore")


DATABASES = {"milvus": Milvus}  # each is called with the address of the database and the name of the collection


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
    total, num_cut, passages = index.num_passages(), 0, index.passages()
    with tqdm(total=total, desc=f"Writing to {uri}", unit="passage") as progress:
        while batch := list(islice(passages, BATCH)):
            num_cut += collection.insert(batch)
            progress.update(len(batch))
    if (count := collection.count()) != total:
        raise ValueError(f"The collection {name!r} at {uri} holds {count:,} of {total:,} passages: export again.")
    if num_cut:
        logger.warning(f"{num_cut} texts were cut: a field of the database holds no more.")
    return Exported(count, num_cut)
