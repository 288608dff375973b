"""Probe frozen document encoders: how well heads classify their embeddings, with few labels and with all.

    # one encoder on the docstrings of the installed packages
    python run_probe_classification.py --model_name_or_path outputs/quickstart

    # several encoders and TF-IDF, the baseline that everyone should beat; few-shot and full data
    python run_probe_classification.py --model_name_or_path outputs/docsplit outputs/simcse tfidf \\
        --train_file train.jsonl --test_file test.jsonl --text_column text --label_column label \\
        --heads mlp linear knn --shots 5 10 20 --output_dir outputs/probe

    # two methods, three pretraining seeds each: only these can tell whether one is ahead
    python run_probe_classification.py --model_name_or_path \\
        DocSplit=outputs/docsplit-1,outputs/docsplit-2,outputs/docsplit-3 \\
        SimCSE=outputs/simcse-1,outputs/simcse-2,outputs/simcse-3 tfidf

    # a data set of the papers
    python run_probe_classification.py recipes/probe_20news.yaml --model_name_or_path outputs/docsplit tfidf

Each document is embedded once per encoder, whatever heads, draws and seeds are asked for, and embeddings are kept in
the cache. Heads are trained on the embeddings as they are, and standardised, with one row for each. The table is
printed and written to results.md; results.json has every number with its spread and settings.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation.task_arguments import ProbeArguments
from docsplit.runtime.options import parse_arguments


def main() -> None:
    """Embed each document once per encoder, train and measure the heads, report after each encoder."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, LabelledArguments, ProbeArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.evaluation.classification import Classification
    from docsplit.evaluation.compare import compare
    from docsplit.release.model_card import add_results

    compare(Classification(data_args, args), encoder_args, add_results)


command = as_command(main)
if __name__ == "__main__":
    command()
