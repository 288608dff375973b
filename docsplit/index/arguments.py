"""The options of the verbs of search.py. Nothing heavy is imported: `--help` reads this module."""

import argparse
from pathlib import Path
from typing import get_args

from docsplit.modeling.pooling import Pooling

METHODS = ("hybrid", "dense", "bm25")
DOCUMENTS = """folder of files, one file (.txt: one document), or python_docs, the docstrings of the installed packages
(python_docs:test: those that no training reads)"""
ID_COLUMN = """column of the ids (default: id, _id or doc_id, else the row's number); in a folder, ids begin with the
file's name"""
THRESHOLD = """lowest similarity of a pair: a cosine, or a dot product if the encoder compares by those (default:
0.95)"""


def _reads_documents(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("documents", type=Path, help=DOCUMENTS)
    add("--text_column", default="text", help="column of the text, in .jsonl, .csv ... (default: text)")
    add("--id_column", help=ID_COLUMN)
    add("--encoding", help="encoding of text files (default: UTF-8, or what is detected)")
    engine = "where documents are embedded: here, or by Ray on many machines (default: here)"
    add("--engine", choices=("here", "ray"), default="here", help=engine)


def build_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py build`."""
    _reads_documents(parser)
    add = parser.add_argument
    add("--model", required=True, help="SentenceTransformer or any AutoModel: Hub name or folder")
    add("--index_dir", type=Path, required=True, help="folder to write the index into")
    add("--passage_words", type=int, default=100, help="approximate words per passage (default: 100)")
    pooling = "pooling of an encoder that does not say (default: cls; lasttoken for a decoder)"
    add("--pooling", choices=get_args(Pooling), help=pooling)
    add("--max_seq_length", type=int, help="tokens read of each text (default: the encoder's)")
    add("--prompt", help="words to put before each text (default: the encoder's)")


def _needs_encoder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="where the index's encoder is now (default: where it was)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py add`."""
    _reads_documents(parser)
    parser.add_argument("--replace", action="store_true", help="replace documents (by id) whose text has changed")
    _needs_encoder(parser)


def query_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py query`."""
    parser.add_argument("text", nargs="?", help="query; without it the command asks for queries until an empty line")
    method = "dense: by meaning (vectors), bm25: by words, hybrid: by both (reciprocal rank fusion; default: hybrid)"
    parser.add_argument("--method", choices=METHODS, default=METHODS[0], help=method)
    parser.add_argument("--count", type=int, default=10, help="documents to print (default: 10)")
    _needs_encoder(parser)


def delete_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py delete`."""
    parser.add_argument("ids", nargs="+", help="ids of documents, as a query prints them")


def duplicates_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py duplicates`."""
    parser.add_argument("--threshold", type=float, default=0.95, help=THRESHOLD)


def clusters_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py clusters`."""
    parser.add_argument("--count", type=int, help="number of groups (default: 10, at most one a document)")


def export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py export`."""
    parser.add_argument("--to", required=True, choices=("milvus",), help="database to write into")
    parser.add_argument("uri", help="address of the database's server, or a file that ends in .db")
    parser.add_argument("--name", default="documents", help="name of the collection (default: documents)")
    parser.add_argument("--replace", action="store_true", help="delete a collection of this name first")
