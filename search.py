"""Search your own documents: by what they are about, by their words, or both.

    python search.py build notes/ --model sentence-transformers/all-MiniLM-L6-v2 --index_dir notes.index
    python search.py query notes.index "how long does a refund take"     # without a text: it asks, again and again
    python search.py add notes.index notes/ --replace                    # embeds what is new or has changed
    python search.py delete notes.index old/draft.md
    python search.py duplicates notes.index
    python search.py clusters notes.index --count 12
    python search.py export notes.index --to milvus http://localhost:19530  # to serve many people; or a file.db

Documents are the text files of a folder (.txt, .md, .rst, .tex, .html), or the rows of .jsonl, .csv, .tsv, .parquet
files. Every verb takes --json, for other programs. Killed at any moment, an index is what it was or what it should be.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import argparse
import json
import logging
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, get_args

from docsplit.modeling.settings import Pooling

METHODS = ("hybrid", "dense", "bm25")
PASSAGE_LINES = 3
SHOWN_PAIRS, SHOWN_IDS = 50, 3


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    description, _, examples = str(__doc__).partition("\n\n")
    kind: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(description=description, epilog=examples, **kind)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, told: str, *, with_index: bool = True) -> argparse.ArgumentParser:
        own = verbs.add_parser(name, help=told, description=told)
        if with_index:
            own.add_argument("index", type=Path, help="the folder of the index")
        own.add_argument("--json", action="store_true", help="one JSON object on standard output")
        return own

    def reads_documents(own: argparse.ArgumentParser) -> None:
        own.add_argument("documents", type=Path, help="a folder of files, or one file")
        own.add_argument("--text_column", default="text", help="of data files (default: text)")
        own.add_argument("--id_column", help="of data files (default: id, _id or doc_id, else the row)")
        own.add_argument("--engine", choices=("here", "ray"), default="here", help="what embeds; ray: many machines")

    build = verb("build", "Embed documents and index them; run again after a kill, it goes on.", with_index=False)
    reads_documents(build)
    build.add_argument("--model", required=True, help="SentenceTransformer or any AutoModel, on the Hub or here")
    build.add_argument("--index_dir", type=Path, required=True, help="folder to make")
    build.add_argument("--passage_words", type=int, default=100, help="of a passage, about (default: 100)")
    build.add_argument("--pooling", choices=get_args(Pooling), help="of an encoder that says nothing about it")
    build.add_argument("--max_seq_length", type=int, help="tokens of a text (default: what the encoder says)")
    build.add_argument("--prompt", help="before each document (default: what the encoder says)")
    query = verb("query", "The best documents for a question, each with its best passage.")
    query.add_argument("text", nargs="?", help="left out: asks, again and again, until an empty line")
    query.add_argument(
        "--method", choices=METHODS, default=METHODS[0], help="hybrid (default): reciprocal rank fusion of both"
    )
    query.add_argument("--count", type=int, default=10, help="documents (default: 10)")
    add = verb("add", "Add documents; those that are in the index unchanged are passed over.")
    reads_documents(add)
    add.add_argument(
        "--replace", action="store_true", help="documents whose text has changed take the old ones' place"
    )
    delete = verb("delete", "Take documents out.")
    delete.add_argument("ids", nargs="+", help="as a query prints them")
    duplicates = verb("duplicates", "Pairs of documents that say nearly the same.")
    duplicates.add_argument("--threshold", type=float, default=0.95, help="of their similarity (default: 0.95)")
    clusters = verb("clusters", "Groups of documents, and the words that name each.")
    clusters.add_argument("--count", type=int, default=10, help="groups (default: 10)")
    export = verb("export", "Write the passages into a vector database, from which others are served.")
    export.add_argument("--to", required=True, dest="database", help="which: milvus")
    export.add_argument("uri", help="of its server, or a file that ends in .db")
    export.add_argument("--name", default="documents", help="of the collection (default: documents)")
    export.add_argument("--replace", action="store_true", help="drop a collection of this name first")
    for own in (query, add):
        own.add_argument("--model", help="where the encoder is now (default: where it was)")
    options = parser.parse_args(words)
    for name in ("count", "passage_words", "max_seq_length"):
        if (value := getattr(options, name, None)) is not None and value < 1:
            parser.error(f"--{name} is {value}: expected 1 or more.")
    return options


def build(options: argparse.Namespace) -> dict[str, Any]:
    """Make an index."""
    from docsplit.data.own_documents import read_documents
    from docsplit.embedding.encoder import Encoder
    from docsplit.index.index import build

    given = {name: getattr(options, name) for name in ("pooling", "max_seq_length", "prompt")}
    encoder = Encoder.of({"name": options.model, "given": given}, cache_dir=options.index_dir / "cache")
    documents = read_documents(options.documents, options.text_column, options.id_column)
    return build(options.index_dir, documents, embedder(options, encoder), encoder.description, options.passage_words)


def add(options: argparse.Namespace) -> dict[str, Any]:
    """Add to an index."""
    from docsplit.data.own_documents import read_documents
    from docsplit.index.index import add

    encoder = encoder_of(options)
    documents = read_documents(options.documents, options.text_column, options.id_column)
    return add(options.index, documents, embedder(options, encoder), encoder.description, options.replace)


def embedder(options: argparse.Namespace, encoder: Any) -> Any:
    """What turns documents into vectors: this process, or Ray's workers."""
    from docsplit.index.ray import embedder_on_ray

    return embedder_on_ray(encoder) if options.engine == "ray" else encoder.embed_for_index


def encoder_of(options: argparse.Namespace) -> Any:
    """The encoder that the index was built with; a ValueError if it is not the same any more."""
    from docsplit.embedding.encoder import Encoder
    from docsplit.index.index import check_encoder, read_manifest

    manifest = read_manifest(options.index)
    encoder = Encoder.of(manifest["encoder"], options.model, options.index / "cache")
    check_encoder(manifest, encoder.description)
    return encoder


def query(options: argparse.Namespace) -> dict[str, Any] | None:
    """Answer one question, or one after another."""
    from docsplit.index.index import Index, check_encoder, read_manifest
    from docsplit.index.segments import query_words

    encoder, index = encoder_of(options) if options.method != "bm25" else None, Index(options.index)

    def answer(text: str) -> dict[str, Any]:
        started = time.perf_counter()
        vector = None if encoder is None else encoder.embed_query(text)
        embedded = time.perf_counter()
        hits = index.search(vector, query_words(text), options.count, options.method)
        spent = {"encoding_ms": 1e3 * (embedded - started), "search_ms": 1e3 * (time.perf_counter() - embedded)}
        return {"query": text, "method": options.method, "rows": [vars(hit) for hit in hits]} | spent

    if options.text is not None:
        if not options.text.strip():
            raise ValueError("The query is empty: give it words.")
        return answer(options.text)
    print(f"{len(index):,} documents. An empty line ends.", file=sys.stderr)
    while text := _asked():
        if read_manifest(options.index) != index.manifest:  # what was deleted from it may be gone
            index = Index(options.index)
            if encoder is not None:
                check_encoder(index.manifest, encoder.description)
        show(answer(text), options)
    return None


def _asked() -> str:
    try:
        return input("? ").strip()
    except EOFError:
        return ""


def delete(options: argparse.Namespace) -> dict[str, Any]:
    """Take documents out of an index."""
    from docsplit.index.index import delete

    return {"deleted": delete(options.index, options.ids)}


def duplicates(options: argparse.Namespace) -> dict[str, Any]:
    """Find near-duplicates."""
    from docsplit.index.index import Index
    from docsplit.index.overview import duplicates

    return {"threshold": options.threshold, "rows": duplicates(Index(options.index), options.threshold)}


def clusters(options: argparse.Namespace) -> dict[str, Any]:
    """Group the documents."""
    from docsplit.index.index import Index
    from docsplit.index.overview import clusters

    return {"rows": clusters(Index(options.index), options.count)}


def export(options: argparse.Namespace) -> dict[str, Any]:
    """Write an index into a database."""
    from docsplit.index.databases import export
    from docsplit.index.index import Index

    return export(Index(options.index), options.database, options.uri, options.name, options.replace)


def show(found: dict[str, Any], options: argparse.Namespace) -> None:
    """Print what a verb gave, for people or as JSON."""
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
    elif options.verb == "query":
        print("\n".join(lines_of_hits(found["rows"])) or "Nothing was found.")
    elif options.verb == "duplicates":
        for row in found["rows"][:SHOWN_PAIRS]:
            print(f"{row['score']:.3f}  {row['same_words']:4.0%} of the words  {row['id']}  =  {row['other']}")
        more = len(found["rows"]) - SHOWN_PAIRS
        print(f"{len(found['rows'])} pairs{f', {more} more than shown: --json has all' if more > 0 else ''}.")
    elif options.verb == "clusters":
        for row in found["rows"]:
            print(f"{row['size']:6,}  {', '.join(row['words'])}\n        {'  '.join(row['ids'][:SHOWN_IDS])}")
    else:
        print(", ".join(f"{name}: {value:,}" for name, value in found.items()))


def lines_of_hits(rows: list[dict[str, Any]]) -> list[str]:
    """Two lines or more a document: rank, score, title, id; and the passage."""
    width = max(shutil.get_terminal_size((100, 24)).columns, 40)
    lines = []
    for rank, row in enumerate(rows, start=1):
        name = row["title"] if row["title"] in ("", row["id"]) else f"{row['title']}  "
        line = f"{rank:3}  {row['score']:.4f}  {name}[{row['id']}]"
        lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
        if row["passage"]:
            passage, indent = " ".join(row["passage"].split()), " " * 5
            lines += textwrap.wrap(
                passage,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                max_lines=PASSAGE_LINES,
                placeholder=" …",
            )
    return lines


def main() -> None:
    """Do what the verb says, and print what came out."""
    options = parse_options()
    logging.basicConfig(level=logging.WARNING if options.json else logging.INFO, format="%(message)s")
    for name in ("sentence_transformers", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if (found := globals()[options.verb](options)) is not None:
        show(found, options)


command = as_command(main)
if __name__ == "__main__":
    command()
