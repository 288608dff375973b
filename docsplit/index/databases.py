"""Export an index to Milvus, a vector database that serves many people: its passages, one after another.

Milvus is a server (http://host:19530), or a file of milvus-lite (notes.db).
"""

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from docsplit.index.results import Exported

if TYPE_CHECKING:
    from docsplit.index.index import IndexReader

logger = logging.getLogger(__name__)

BATCH = 1000  # passages of a request
LONGEST_ID, LONGEST_TEXT = 1024, 65_535  # bytes; the latter is what a VARCHAR holds
LONGEST = {"id": LONGEST_ID, "document": LONGEST_ID, "title": LONGEST_ID, "text": LONGEST_TEXT}


def write_database(index: "IndexReader", uri: str, name: str = "documents", replace: bool = False) -> Exported:
    """Write an index into Milvus: a collection with id, document, title, text and vector, and an index on the vectors.

    Args:
        uri: of the server, a user and password in it, or a file's path that ends in .db.
        name: of the collection.
        replace: drop a collection of this name that is there.

    Raises:
        ValueError: if pymilvus is not installed, the server does not answer, the collection is there already, an id is
            too long, or not all passages are there in the end.
    """
    try:
        import pymilvus
    except ImportError as error:
        raise ValueError("Milvus is written to by pymilvus, which is not there: pip install pymilvus.") from error
    try:
        client: Any = pymilvus.MilvusClient(uri=uri)
    except (pymilvus.exceptions.MilvusException, OSError) as error:
        raise ValueError(f"No Milvus answers at {uri}: {' '.join(str(error).split())}") from error

    # The collection. Scalar products compare vectors, which have length one where an encoder compares by cosine
    if client.has_collection(name):
        if not replace:
            raise ValueError(f"There is a collection {name!r} at {uri} already: --replace drops it, --name chooses.")
        client.drop_collection(name)
    schema = client.create_schema(auto_id=False)
    for field, longest in LONGEST.items():
        schema.add_field(field, pymilvus.DataType.VARCHAR, is_primary=field == "id", max_length=longest)
    schema.add_field("vector", pymilvus.DataType.FLOAT_VECTOR, dim=index.manifest.encoder["dimension"])
    indexed = client.prepare_index_params()
    indexed.add_index("vector", index_type="AUTOINDEX", metric_type="IP")  # inner product
    client.create_collection(name, schema=schema, index_params=indexed)

    # Its passages
    total, num_cut, passages = index.num_passages(), 0, index.passages()
    with tqdm(total=total, desc=f"Writing to {uri}", unit="passage") as progress:
        while batch := list(islice(passages, BATCH)):
            rows: list[dict[str, Any]] = []
            for passage, vector in batch:
                if len(passage["id"].encode(errors="replace")) > LONGEST_ID:
                    raise ValueError(f"The id {passage['id'][:40]!r}... is longer than {LONGEST_ID} bytes.")
                fields = {field: cut(text, LONGEST[field]) for field, text in passage.items()}
                num_cut += fields["text"] != passage["text"]
                rows.append({**fields, "vector": vector.tolist()})
            client.insert(name, rows)
            progress.update(len(batch))
    client.flush(name)
    if (count := int(client.query(name, output_fields=["count(*)"])[0]["count(*)"])) != total:
        raise ValueError(f"The collection {name!r} at {uri} holds {count:,} of {total:,} passages: export again.")
    if num_cut:
        logger.warning(f"{num_cut} texts were cut: a field of the database holds no more.")
    return Exported(count, num_cut)


def cut(text: str, longest: int) -> str:
    """Keep as much of a text as its UTF-8 has bytes for."""
    return text.encode(errors="replace")[:longest].decode(errors="ignore")
