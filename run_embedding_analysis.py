"""Analyse what embeddings see of documents: redundancy, similarity, attention, clusters, maps and geometry.

    # what needs no part-of-speech tagger, on the docstrings of the installed packages
    python run_embedding_analysis.py --model_name_or_path outputs/quickstart tfidf \\
        --analyses similarity clustering map geometry

    # all, on files of your own, with an installed spaCy pipeline
    python run_embedding_analysis.py --model_name_or_path outputs/docsplit outputs/simcse tfidf \\
        --train_file train.jsonl --test_file test.jsonl --spacy_pipeline en_core_web_sm --output_dir outputs/analysis

Redundancy is measured on the documents of all parts. Clusters are fitted on train and measured on test. Geometry
takes all test documents; the other analyses take a sample of them, the same for all encoders. report.html has tables,
pictures and their CSV in one file that opens offline; analysis.json has every number, analysis.md the tables.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.task_arguments import AnalysisArguments
from docsplit.runtime.options import parse_arguments


def main() -> None:
    """Analyse one encoder after another, report after each."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, LabelledArguments, AnalysisArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.evaluation.analysis.analyses import EmbeddingAnalysis
    from docsplit.evaluation.compare import compare
    from docsplit.release.model_card import add_results

    compare(EmbeddingAnalysis(data_args, args), encoder_args, add_results)


command = as_command(main)
if __name__ == "__main__":
    command()
