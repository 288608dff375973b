"""Make an encoder better on your own documents, in seconds to minutes, without labels.

    # the encoder and the words of your documents: a folder that SentenceTransformer loads
    python adapt.py sentence-transformers/all-MiniLM-L6-v2 notes/ outputs/mine

    # the words alone: a static encoder, some 90 times as fast on long documents (CPU); model2vec loads it too
    python adapt.py sentence-transformers/all-MiniLM-L6-v2 documents.jsonl outputs/static --static --text_column body

    # train the encoder on the documents first, for minutes; what is best on labelled documents is written
    python adapt.py my/encoder documents.jsonl outputs/best --train --probe_corpus labelled.jsonl

    # an encoder of the documents alone, from nothing: no weights, any language, in a minute or two
    python adapt.py none documents.jsonl outputs/from_nothing

    # the same in Python
    from docsplit import AdaptOptions, adapt
    adapt("my/encoder", ["a text", "another", ...], "outputs/mine", AdaptOptions(static=True))

The words of whole documents are fitted to the encoder's vectors in closed form (docs/adaptation.md says how, and what
it is worth). A vector keeps its dimension and its space. Embed documents with `encode_document` and queries with
`encode_query`. With labels (--probe_corpus) all candidates are measured, and the start is written if nothing beats
it. OUTPUT is written whole or not at all; its README.md describes it.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
from docsplit.runtime.files import refuse_missing_path
from docsplit.runtime.options import parse_arguments
from docsplit.training.adapt_options import AdaptOptions

POSITIONAL = {
    "encoder": "a SentenceTransformer or any AutoModel: a name on the Hub, or a folder; none: one is made of the "
    "documents alone",
    "documents": "a folder of files (text, .html, .pdf, .docx, .jsonl, .csv, .parquet ...), one such file (.txt: a "
    "document a line), python_docs, or a data set on the Hub",
    "output": "a new folder",
}


def main() -> None:
    """Adapt the encoder, and write it."""
    options, given = parse_arguments([AdaptOptions], str(__doc__), positional=POSITIONAL)
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.data.corpora import EXPECTED_CORPUS

    refuse_missing_path(given["documents"], EXPECTED_CORPUS)
    from docsplit.runtime.launching import join_processes
    from docsplit.training.adapting import adapt, adaptation_text

    is_main = join_processes().is_main_process
    adapted = adapt(given["encoder"], given["documents"], given["output"], options)
    if is_main:
        print(f"\n{adaptation_text(adapted, given['encoder'])}")


command = as_command(main)
if __name__ == "__main__":
    command()
