"""Predict citation links between papers from frozen embeddings: is this paper cited by that one, yes or no?

    # one encoder on the "See also" links between the docstrings of the installed packages
    python run_aan_retrieval.py --model_name_or_path outputs/quickstart

    # the AAN task of Long Range Arena: a folder with its train, eval and test .tsv files
    python run_aan_retrieval.py recipes/retrieval_aan.yaml --lra_dir lra_release/tsv_data \\
        --model_name_or_path outputs/docsplit outputs/simcse

    # your own papers (id, title, abstract, text or sections) and their citations (citing, cited); splits are made here
    python run_aan_retrieval.py --model_name_or_path outputs/docsplit --papers_file papers.parquet \\
        --citations_file citations.tsv --output_dir outputs/aan

Each distinct paper is embedded once per encoder. The head of the DocSplit paper is an MLP on both embeddings, [a; b].
It is trained on them as they are, and standardised: each number with mean 0 and deviation 1 over the training pairs.
It is compared with the untrained cosine, with BM25 on the texts, and with popularity, which sees no text at all and
should be at chance.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
from docsplit.data.sets.set_arguments import CitationArguments
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.task_arguments import LinkArguments
from docsplit.runtime.options import parse_arguments


def main() -> None:
    """Embed each paper once per encoder, train and measure the heads, report."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, CitationArguments, LinkArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.evaluation.compare import compare
    from docsplit.evaluation.links import Links
    from docsplit.release.model_card import add_results

    compare(Links(data_args, args), encoder_args, add_results)


command = as_command(main)
if __name__ == "__main__":
    command()
