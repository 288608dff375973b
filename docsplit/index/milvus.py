"""Passages into Milvus: a server (http://host:19530), or a file of milvus-lite (notes.db)."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from docsplit.index.databases import StoredPassage

logger = logging.getLogger(__name__)

BATCH = 1000  # passages of a request
LONGEST_ID, LONGEST_TEXT = 1024, 65_535  # bytes; the latter is what a VARCHAR holds


def write(
    passages: "Iterator[StoredPassage]", count: int, description: dict[str, Any], uri: str, name: str, replace: bool
) -> dict[str, Any]:
    """Make a collection with the fields id, document, title, text and vector, and an index on the vectors.

    Args:
        count: of the passages, for the progress bar and to check what arrived.
        description: of the encoder, as the manifest has it.
        uri: of the server, a user and password in it, or a file's path that ends in .db.

    Returns: how many passages the collection holds, and how many texts were cut to what a field holds.

    Raises:
        ValueError: if pymilvus is not installed, the server does not answer, the collection is there and `replace` is
            False, an id is too long, or the collection does not hold all passages in the end.
    """
    try:
        from pymilvus import DataType, MilvusClient
        from pymilvus.exceptions import MilvusException
    except ImportError as error:
        raise ValueError("Milvus is written to by pymilvus, which is not installed: pip install pymilvus.") from error
    try:
        client = MilvusClient(uri=uri)
    except (MilvusException, OSError) as error:
        raise ValueError(f"No Milvus answers at {uri}: {' '.join(str(error).split())}") from error
    if client.has_collection(name):
        if not replace:
            raise ValueError(f"There is a collection {name!r} at {uri} already: --replace drops it, --name chooses.")
        client.drop_collection(name)
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
    for field, longest in (("document", LONGEST_ID), ("title", LONGEST_ID), ("text", LONGEST_TEXT)):
        schema.add_field(field, DataType.VARCHAR, max_length=longest)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=description["dimension"])
    indexed = client.prepare_index_params()
    indexed.add_index("vector", index_type="AUTOINDEX", metric_type="IP")  # vectors are of length one for the cosine
    client.create_collection(name, schema=schema, index_params=indexed)
    batch: list[dict[str, Any]] = []
    num_cut = 0
    with tqdm(total=count, desc=f"Writing to {uri}", unit="passage") as progress:
        for passage in passages:
            if len(passage.id.encode()) > LONGEST_ID:
                raise ValueError(f"The id {passage.id[:40]!r}... is longer than {LONGEST_ID} bytes.")
            text = _cut(passage.text, LONGEST_TEXT)
            num_cut += text != passage.text
            row = {"id": passage.id, "document": passage.document, "title": _cut(passage.title, LONGEST_ID)}
            batch.append(row | {"text": text, "vector": passage.vector.tolist()})
            if len(batch) == BATCH:
                client.insert(name, batch)
                progress.update(len(batch))
                batch = []
        if batch:
            client.insert(name, batch)
            progress.update(len(batch))
    client.flush(name)
    held = int(client.query(name, output_fields=["count(*)"])[0]["count(*)"])
    if held != count:
        raise ValueError(f"The collection {name!r} at {uri} holds {held:,} of {count:,} passages: export again.")
    if num_cut:
        logger.warning(f"{num_cut} texts were cut to {LONGEST_TEXT:,} bytes, which is what a field holds.")
    return {"passages": held, "cut": num_cut}


def _cut(text: str, longest: int) -> str:
    """So much of a text that its UTF-8 has no more bytes."""
    return text.encode()[:longest].decode(errors="ignore")
