"""Search your own documents: by what they are about, by their words, or both.

    python search.py build notes/ --model sentence-transformers/all-MiniLM-L6-v2 --index_dir notes.index
    python search.py query notes.index "how long does a refund take"     # without a text: it asks, again and again
    python search.py serve notes.index                                   # loads once: a page, and JSON for programs
    python search.py sync notes.index                                    # takes over what has changed in notes/
    python search.py add notes.index more/                               # other documents; --replace: by their ids
    python search.py delete notes.index old/draft.md
    python search.py query notes.index --like old/draft.md               # documents like that one
    python search.py duplicates notes.index
    python search.py clusters notes.index --count 12
    python search.py info notes.index
    python search.py check notes.index                                   # reads every file: is all as it was written?
    python search.py export notes.index --to milvus http://localhost:19530  # to serve many people; or a file.db

Documents are the files of a folder: text (.txt, .md, .rst, .tex, .html), the rows of .jsonl, .csv, .tsv, .xlsx,
.parquet files, and .pdf, .docx, .pptx after pip install "markitdown[pdf,docx,pptx]"; docs/datasets.md has the rules.
Every verb takes --json, for other programs. Killed at any moment, an index is what it was or what it should be.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from docsplit.data.fusion import FUSIONS, WEIGHT
from docsplit.data.words import ENGLISH, LANGUAGES
from docsplit.index.results import (
    METHODS,
    Answer,
    Checked,
    Clusters,
    CommandResult,
    Deleted,
    Duplicates,
    Info,
    counted,
)
from docsplit.modeling.pooling import PoolingMode
from docsplit.runtime.bounds import Bound
from docsplit.runtime.command import Style, as_json, command_line, log_messages, shown, with_installed_commands
from docsplit.runtime.options import CommandParser, add_plugin
from docsplit.runtime.tables import prepare_table, write_table

if TYPE_CHECKING:
    from docsplit.index.api import Index

logger = logging.getLogger(__name__)

DOCUMENTS = """folder of files, one file (.txt: one document), or python_docs, the docstrings of the installed packages
(python_docs:test: those that no training reads)"""
ID_COLUMN = """column of the ids (default: id, _id or doc_id, else the row's number); in a folder, ids begin with the
file's name"""
THRESHOLD = """lowest similarity of a pair: a cosine, or a dot product if the encoder compares by those (default:
0.95)"""

SERVED = """    python search.py serve notes.index                                   # http://127.0.0.1:8765/ is a page
    curl 'http://127.0.0.1:8765/query?text=refunds&count=3'              # as search.py query --json
    curl -d '{"text": "refunds", "under": "letters/"}' http://127.0.0.1:8765/query
    curl 'http://127.0.0.1:8765/document?id=letters/1.txt'
    curl http://127.0.0.1:8765/info
    python search.py serve notes.index mail.index --mcp                  # what an agent starts: search, read, info

/query takes text, count (at most 100), method, fusion, weight, under and index. Of several indexes each answers by
itself, under its name. What sync, add and build change counts at once. Nobody else can ask: the server listens on
127.0.0.1 alone, refuses pages of others, and writes nothing. --mcp needs: pip install "mcp>=2.3,<3\"
"""


def build(options: argparse.Namespace) -> Iterator[CommandResult]:
    """Make an index."""
    from docsplit.embedding.encoder_arguments import EncoderArguments
    from docsplit.index.changes import build, refuse_taken

    refuse_taken(options.index_dir)
    documents, source = documents_of(options)
    from docsplit.embedding.encoder import Encoder  # which takes seconds

    given = {name: getattr(options, name) for name in ("pooling", "max_seq_length", "prompt", "query_prompt")}
    encoder = Encoder(options.model, EncoderArguments([options.model], **given), options.index_dir / "cache")
    yield build(
        options.index_dir, documents, encoder, options.passage_words, source, embedder(options, encoder),
        options.language,
    )  # fmt: skip
    logger.info(f"Next: {command_line('search.py', 'query', options.index_dir, 'a question')}")


def add(options: argparse.Namespace) -> Iterator[CommandResult]:
    """Add to an index."""
    from docsplit.index.changes import add

    index = index_of(options)
    documents, source = documents_of(options)
    encoder = index.encoder()
    yield add(options.index, documents, encoder, options.replace, source, embedder(options, encoder))


def documents_of(options: argparse.Namespace) -> tuple[Iterator[Any], tuple[str, Any]]:
    """Return the documents that are named, and where they come from, for `sync`; python_docs comes from nowhere.

    Raises:
        ValueError: if the first of them cannot be read.
    """
    from docsplit.data.corpora import documents_to_search
    from docsplit.data.readers.base import TableColumns
    from docsplit.index.changes import begun

    path, columns = options.documents, TableColumns(options.text_column, options.id_column, options.encoding)
    return begun(documents_to_search(path, columns)), (str(path.absolute()) if path.exists() else "", columns)


def sync(options: argparse.Namespace) -> Iterator[CommandResult]:
    """Take over what has changed in folders."""
    yield index_of(options).sync(options.folder, options.yes)


def embedder(options: argparse.Namespace, encoder: Any) -> Any:
    """Return what turns texts into vectors where it is not this process: Ray's workers."""
    from docsplit.index.ray import embedder_on_ray

    return embedder_on_ray(encoder) if options.engine == "ray" else None


def index_of(options: argparse.Namespace) -> "Index":
    """Open the index that is named; its encoder is loaded when it is needed."""
    from docsplit.index.api import Index

    return Index(options.index, getattr(options, "model", None))


def query(options: argparse.Namespace) -> Iterator[Answer]:
    """Answer one question, or one after another."""
    index, text = index_of(options), options.text
    how = options.count, options.method, options.fusion, options.weight, options.under
    if text is not None or options.like is not None:
        yield index.answer_like(options.like, *how) if text is None else index.answer(text, *how)
        return
    if options.method != "bm25":
        index.encoder()  # which takes seconds
    shows_questions = sys.stdin.isatty() and sys.stdout.isatty()  # as they are typed
    for number, text in enumerate(_questions(f"{len(index):,} documents. An empty line ends.")):
        answer = index.answer(text, *how)
        if not (shows_questions or options.json):
            print("\n" * bool(number) + Style.of(sys.stdout).bold(shown(text)))
        yield answer


def _questions(greeting: str) -> Iterator[str]:
    """Read a question from each line of a pipe or file; or ask a person, who ends it by an empty line."""
    if not sys.stdin.isatty():
        yield from filter(None, map(str.strip, sys.stdin))
        return
    print(greeting, file=sys.stderr)
    prompt = "? " if sys.stdout.isatty() else ""  # elsewhere it would stand among the answers
    with contextlib.suppress(EOFError):
        while text := input(prompt).strip():
            yield text


def delete(options: argparse.Namespace) -> Iterator[Deleted]:
    """Take documents out of an index."""
    yield Deleted(index_of(options).delete(options.ids))


def duplicates(options: argparse.Namespace) -> Iterator[Duplicates]:
    """Find near-duplicates."""
    yield Duplicates(options.threshold, index_of(options).duplicates(options.threshold, options.under))


def clusters(options: argparse.Namespace) -> Iterator[Clusters]:
    """Group the documents."""
    if options.output_file is not None:
        prepare_table(options.output_file)
    groups = index_of(options).clusters(options.count, options.under)
    yield Clusters(groups)
    if options.output_file is not None:
        write_table(
            options.output_file,
            [
                {"id": document_id, "group": number, "words": group.words, "title": title}
                for number, group in enumerate(groups, start=1)
                for document_id, title in zip(group.ids, group.titles)
            ],
        )
        logger.info(f"The group of each document is in {options.output_file}.")


def info(options: argparse.Namespace) -> Iterator[Info]:
    """Say what an index holds."""
    yield index_of(options).info()


def check(options: argparse.Namespace) -> Iterator[Checked]:
    """Read all of an index; a ValueError follows the result if something is damaged."""
    yield (checked := Checked.of(options.index))
    if checked.faults:
        raise ValueError(f"The index in {options.index} is not sound: {counted(len(checked.faults), 'fault')}.")


def export(options: argparse.Namespace) -> Iterator[CommandResult]:
    """Write an index into a database."""
    from docsplit.index.databases import write_database
    from docsplit.index.index import IndexReader

    yield write_database(IndexReader(options.index), options.uri, options.name, options.replace)


def serve(options: argparse.Namespace) -> Iterator[CommandResult]:
    """Keep indexes open, and answer until the end: over HTTP, or an agent."""
    from docsplit.index.serving import OpenIndexes, Server, serve_agent

    if options.mcp:
        serve_agent(OpenIndexes(options.indexes, options.model))
        return
    with Server(options.port, options.indexes, options.model) as server:
        yield server.address()
        sys.stdout.flush()  # of a pipe: other programs wait for the address
        server.serve_forever()


# --- Options ---


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
    add_plugin(parser)
    add("--model", required=True, help="SentenceTransformer or any AutoModel: Hub name or folder")
    add("--index_dir", type=Path, required=True, help="folder to write the index into")
    add("--passage_words", type=Bound(1), default=100, help="approximate words per passage (default: 100)")
    language = "of the documents: searching by words counts stems (default: english); none: whole words"
    add("--language", choices=LANGUAGES, default=ENGLISH, metavar="LANGUAGE", help=language)
    pooling = "pooling of an encoder that does not say (default: cls; lasttoken for a decoder)"
    add("--pooling", choices=get_args(PoolingMode), help=pooling)
    add("--max_seq_length", type=Bound(3), help="tokens read of each text (default: the encoder's)")
    add("--prompt", help="text before each document, such as 'passage: ' for E5 (default: the encoder's)")
    add("--query_prompt", help="text before each query, such as 'query: ' for E5 (default: the encoder's)")


def _needs_encoder(parser: argparse.ArgumentParser) -> None:
    add_plugin(parser)
    parser.add_argument("--model", help="where the index's encoder is now (default: where it was)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py add`."""
    _reads_documents(parser)
    parser.add_argument("--replace", action="store_true", help="replace documents (by id) whose text has changed")
    _needs_encoder(parser)


def sync_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py sync`."""
    folder = "that documents were read from, or where it is now (default: all of them)"
    parser.add_argument("folder", nargs="?", type=Path, help=folder)
    parser.add_argument(
        "--yes",
        action="store_true",
        help="go on even if most of its documents are gone, or documents from elsewhere have their ids",
    )
    _needs_encoder(parser)


def _takes_a_part(parser: argparse.ArgumentParser) -> None:
    under = "only documents whose ids begin so, such as letters/2024/ (default: all)"
    parser.add_argument("--under", default="", metavar="PREFIX", help=under)


def query_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py query`."""
    text = "query; without it the command loads once and asks for queries, or reads one a line from a pipe"
    either = parser.add_mutually_exclusive_group()
    either.add_argument("text", nargs="?", help=text)
    either.add_argument("--like", metavar="ID", help="a document, in place of a query: find others like it")
    method = "dense: by meaning (vectors), bm25: by words, hybrid: by both (default: hybrid)"
    parser.add_argument("--method", choices=METHODS, default=METHODS[0], help=method)
    fusion = "of a hybrid: sum of both scores, or rrf: reciprocal ranks (default: sum)"
    parser.add_argument("--fusion", choices=FUSIONS, default=FUSIONS[0], help=fusion)
    parser.add_argument(
        "--weight", type=Bound(0, 1, kind=float), default=WEIGHT, help=f"of the meaning in the sum (default: {WEIGHT})"
    )
    parser.add_argument("--count", type=Bound(1), default=5, help="documents to print (default: 5)")
    _takes_a_part(parser)
    _needs_encoder(parser)


def delete_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py delete`."""
    parser.add_argument("ids", nargs="+", help="ids of documents, as a query prints them")


def duplicates_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py duplicates`."""
    parser.add_argument("--threshold", type=Bound(kind=float), default=0.95, help=THRESHOLD)
    _takes_a_part(parser)


def clusters_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py clusters`."""
    parser.add_argument("--count", type=Bound(1), help="number of groups (default: 10, at most one a document)")
    table = "new CSV file to write: id, group, words, title"
    parser.add_argument("--output_file", type=Path, help=table)
    _takes_a_part(parser)


def export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py export`."""
    parser.add_argument("--to", required=True, choices=("milvus",), help="database to write into")
    parser.add_argument("uri", help="address of the database's server, or a file that ends in .db")
    parser.add_argument("--name", default="documents", help="name of the collection (default: documents)")
    parser.add_argument("--replace", action="store_true", help="delete a collection of this name first")


def serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `search.py serve`."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, with_installed_commands(SERVED)
    parser.add_argument("indexes", nargs="+", type=Path, metavar="index", help="the folder of an index")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--port", type=Bound(0, 2**16 - 1), default=8765, help="0: any that is free (default: 8765)")
    agents = "answer an agent over standard input and output, as the Model Context Protocol has it"
    how.add_argument("--mcp", action="store_true", help=agents)
    _needs_encoder(parser)


@dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Iterator[CommandResult]]
    has_index: bool = True


VERBS = {
    "build": Verb("Embed documents and index them; run again after a kill, it goes on.", build_options, build, False),
    "query": Verb("Find the best documents for a question, each with its best passage.", query_options, query),
    "serve": Verb("Load once, and answer people, programs and agents of this machine.", serve_options, serve, False),
    "sync": Verb("Add, replace and remove what has changed in the folders.", sync_options, sync),
    "add": Verb("Add documents; those that are in the index unchanged are passed over.", add_options, add),
    "delete": Verb("Take documents out.", delete_options, delete),
    "duplicates": Verb("Find pairs of documents that say nearly the same.", duplicates_options, duplicates),
    "clusters": Verb("Group documents, and name each group by words.", clusters_options, clusters),
    "info": Verb("Say what an index holds, and which encoder it needs.", lambda parser: None, info),
    "check": Verb("Read every file of an index: exits with 0 only if all are sound.", lambda parser: None, check),
    "export": Verb("Write the passages into a vector database, which serves others.", export_options, export),
}


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandParser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        of_verb = verbs.add_parser(name, help=verb.help, description=verb.help)
        if verb.has_index:
            of_verb.add_argument("index", type=Path, help="the folder of the index")
        verb.add_options(of_verb)
        of_verb.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    return parser.parse_args(words)


def main() -> None:
    """Do what the verb says, and print what it gives, for people or as JSON."""
    options = parse_options()
    log_messages(logging.WARNING if options.json else logging.INFO)
    style = Style.of(sys.stdout)
    for result in VERBS[options.verb].run(options):
        lines = as_json(asdict(result)) if options.json else "\n".join(result.lines(style))
        print(lines, flush=True)  # a program may wait for it before it asks again


command = as_command(main)
if __name__ == "__main__":
    command()
