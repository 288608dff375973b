"""Milvus as a database of passages: a server (http://host:19530), or a file of milvus-lite (notes.db)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docsplit.index.index import StoredPassage

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
            raise ValueError(
                "Milvus is written to by pymilvus, which is not installed: pip install pymilvus."
            ) from error
        try:
            self.client = MilvusClient(uri=uri)
        except (MilvusException, OSError) as error:
            raise ValueError(f"No Milvus answers at {uri}: {' '.join(str(error).split())}") from error
        self.uri, self.name = uri, name

    def create(self, dimension: int, replace: bool) -> None:
        """Make the collection, as `docsplit.index.databases.export.Database` says."""
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
        """Write passages, and return how many texts were cut.

        Raises:
            ValueError: if an id is too long.
        """
        rows, num_cut = [], 0
        for passage in passages:
            if len(passage.id.encode()) > LONGEST_ID:
                raise ValueError(f"The id {passage.id[:40]!r}... is longer than {LONGEST_ID} bytes.")
            row = {
                "id": passage.id,
                "document": passage.document,
                "title": _cut(passage.title, LONGEST_ID),
                "text": _cut(passage.text, LONGEST_TEXT),
                "vector": passage.vector.tolist(),
            }
            rows.append(row)
            num_cut += row["text"] != passage.text
        self.client.insert(self.name, rows)
        return num_cut

    def count(self) -> int:
        """Count the passages that the collection holds."""
        self.client.flush(self.name)
        return int(self.client.query(self.name, output_fields=["count(*)"])[0]["count(*)"])


def _cut(text: str, longest: int) -> str:
    """Keep as much of a text as its UTF-8 has bytes for."""
    return text.encode()[:longest].decode(errors="ignore")
