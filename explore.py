"""Show a corpus as an encoder sees it: one HTML page that works by opening the file, offline.

    python explore.py notes.index                                          # an index of search.py
    python explore.py outputs/quickstart                                   # the built-in corpus
    python explore.py outputs/mine --corpus documents.jsonl --label_column topic --output mine.html

The page has a map with named groups, and a search by words. A document comes with its nearest ones, and with each the
two sentences that match best. Beside them stand the probe and the training curves of the checkpoint, if it has them.
Everything is in the file, texts included: share it as you may share the corpus.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import argparse
from pathlib import Path

from docsplit.data.words import ENGLISH, LANGUAGES
from docsplit.runtime.bounds import Bound
from docsplit.runtime.command import log_messages
from docsplit.runtime.files import refuse_missing_path, write_text
from docsplit.runtime.options import CommandParser, add_plugin


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandParser(__doc__)
    add_plugin(parser)
    documents = parser.add_argument_group("Encoder and documents")
    documents.add_argument(
        "encoder",
        help="an encoder: folder or Hub name; or the folder of an index, which has its encoder and documents",
    )
    documents.add_argument("--model", help="where the encoder of the index is now (default: where it was)")
    documents.add_argument(
        "--corpus",
        help="documents: file (.txt: a document a line), folder of files, Hub name or python_docs (default: "
        "python_docs); not with an index",
    )
    documents.add_argument("--text_column", default="text", help="column of the text (default: text)")
    documents.add_argument("--encoding", help="encoding of text files (default: UTF-8, or what is detected)")
    documents.add_argument(
        "--label_column",
        help="column that colours the map (default: label, if there is one); of a folder, only data files are read",
    )
    documents.add_argument(
        "--max_documents", type=Bound(3), default=20_000, help="most documents, drawn at random (default: 20000)"
    )
    documents.add_argument(
        "--max_seq_length",
        type=Bound(3),
        help="tokens that the encoder reads of each document (default: the encoder's)",
    )
    shown = parser.add_argument_group("The page")
    shown.add_argument("--neighbours", type=Bound(1), default=8, help="nearest documents shown with each (default: 8)")
    shown.add_argument(
        "--map",
        choices=["tsne", "pca"],
        help="projection of the map (default: tsne, or pca for more than 5,000 documents without openTSNE)",
    )
    shown.add_argument(
        "--language", choices=LANGUAGES, metavar="LANGUAGE",
        help="language of the stems that the search counts (default: english, or the index's); none: whole words",
    )  # fmt: skip
    shown.add_argument("--output", type=Path, help="page to write (default: ENCODER.html beside the encoder or index)")
    options = parser.parse_args()
    refuse_missing_path(options.encoder, "a folder with an encoder or an index, or a model of the Hub (USER/NAME)")
    folder = Path(options.encoder)
    options.is_index = (folder / "manifest.json").exists()
    if options.is_index and (options.corpus or options.label_column):
        parser.error(f"{options.encoder} is an index and has documents of its own: no --corpus, no --label_column.")
    if options.is_index and options.encoding:
        parser.error(f"{options.encoder} is an index, whose documents are read: no --encoding.")
    if options.is_index and options.language:
        parser.error(f"{options.encoder} is an index and has a language of its own: no --language.")
    if options.is_index and options.max_seq_length:
        parser.error(f"{options.encoder} is an index, whose documents are embedded: no --max_seq_length.")
    if options.model and not options.is_index:
        parser.error(f"--model says where the encoder of an index is, but {options.encoder} is no index.")
    options.corpus = None if options.is_index else options.corpus or "python_docs"
    options.output = options.output or default_output(folder)
    if options.output.is_dir():
        parser.error(f"--output {options.output} is a folder: name a file, such as {options.output / 'page.html'}")
    if options.is_index and folder.resolve() in options.output.resolve().parents:
        parser.error(f"--output is in {folder}, which belongs to search.py: name a file outside of it.")
    return options


def default_output(encoder: Path) -> Path:
    """Name the page after the encoder or the index: beside its folder, or here if the encoder is on the Hub."""
    if not encoder.exists():
        return Path(f"{encoder.name}.html")
    folder = with_a_name(encoder)
    return folder.with_name(f"{folder.name}.html")


def with_a_name(folder: Path) -> Path:
    """Resolve `.` and `..`, whose folders have a name that the path does not say."""
    return folder.resolve() if folder.name in ("", "..") else folder


def main() -> None:
    """Read the documents and their encoder, and write the page."""
    options = parse_options()
    log_messages()
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.embedding.encoder_arguments import EncoderArguments
    from docsplit.explorer.documents import documents_of_index, read_explored
    from docsplit.index.index import read_manifest

    options.output.parent.mkdir(parents=True, exist_ok=True)
    # The documents and their encoder: an index has both.
    folder = Path(options.encoder)
    language = options.language or ENGLISH
    if options.is_index:
        language = read_manifest(folder).language
        documents, encoder = documents_of_index(folder, options.max_documents, options.model)
        name = with_a_name(folder).name
    else:
        documents = read_explored(
            options.corpus, options.text_column, options.label_column, options.max_documents, options.encoding
        )
        from docsplit.embedding.encoder import Encoder  # which takes seconds

        reader = Encoder(options.encoder, EncoderArguments([options.encoder], max_seq_length=options.max_seq_length))
        reader.announce(documents.texts)
        encoder = reader.model
        name = f"{with_a_name(folder).name} on {Path(options.corpus).name}"
    from docsplit.explorer.page import build_page

    page = build_page(documents, encoder, name, folder, options.neighbours, options.map, language)
    write_text(options.output, page)
    size = options.output.stat().st_size
    written = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    print(f"{options.output} ({written}) is written. Open it in a browser: {options.output.resolve().as_uri()}")


command = as_command(main)
if __name__ == "__main__":
    command()
