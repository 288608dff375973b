"""Rank documents for queries, by dense vectors, by BM25 and by both together, and compare encoders.

    # one encoder on the docstrings of the installed packages: the first line of each is a query for the rest
    python run_document_retrieval.py --model_name_or_path outputs/quickstart

    # a judged collection in BEIR's layout, a folder or a data set on the Hub; bm25 needs no encoder
    python run_document_retrieval.py --collection data/cranfield --output_dir outputs/cranfield \\
        --model_name_or_path outputs/docsplit sentence-transformers/all-MiniLM-L6-v2 bm25

    # trained on the other folds' queries: run_docsplit_pretraining.py --view query_document --fold 0
    python run_document_retrieval.py --collection data/cranfield --fold 0 --model_name_or_path outputs/ranking_fold_0

    # Robust04 with its five folds; MS MARCO's documents, the hybrid's weight chosen on other queries than dev's
    python run_document_retrieval.py --collection data/robust04 --folds data/robust04/folds.json \\
        --choose_weight --model_name_or_path outputs/docsplit
    python run_document_retrieval.py --collection data/msmarco --split dev --selection_split train \\
        --model_name_or_path outputs/docsplit

    # any corpus with titles: a title finds its own article, and those that this one links to
    python run_document_retrieval.py --collection wikipedia.parquet --queries title \\
        --model_name_or_path outputs/docsplit

Each document is embedded once per encoder, and kept in the cache. Each encoder alone is compared with BM25 (with
bm25s's default parameters, then k1 0.9 and b 0.4) and with both together: their weighted sum (hybrid), or reciprocal
ranks (--fusion rrf). A weight that is chosen (--choose_weight) is never chosen on the queries that it is measured on.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
from docsplit.data.sets.set_arguments import RankingArguments
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.task_arguments import RetrievalArguments
from docsplit.runtime.options import parse_arguments


def main() -> None:
    """Find documents by words and by each encoder's vectors, measure, report."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, RankingArguments, RetrievalArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.evaluation.compare import compare
    from docsplit.evaluation.ranking import DocumentRanking, RankingByFold
    from docsplit.release.model_card import add_results

    kind = RankingByFold if args.encoders_by_fold else DocumentRanking
    compare(kind(data_args, args), encoder_args, add_results)


command = as_command(main)
if __name__ == "__main__":
    command()
