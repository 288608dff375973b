"""Options that choose what is measured on: labelled documents, citations, rankings. Nothing heavy is imported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from docsplit.runtime.bounds import Count, option


def check_folds(folds: str, fold: int | None) -> None:
    """Check a number of folds, or the file that has them, and the number of one.

    Raises:
        ValueError: if there is no such fold, or nothing to divide by.
    """
    if not folds.isdigit():
        if not Path(folds).is_file():
            raise ValueError(f"--folds {folds} is neither a number nor a JSON file with lists of query ids.")
    elif int(folds) < 2:
        raise ValueError(f"--folds {folds}: give 2 or more.")
    elif fold is not None and fold >= int(folds):
        raise ValueError(f"--fold {fold}: give 0 to {int(folds) - 1}; the {folds} folds of --folds count from 0.")


@dataclass
class LabelledArguments:
    """The labelled documents."""

    dataset_name: str | None = option(
        None,
        "Hub data set, NAME or NAME:CONFIGURATION, or a folder of save_to_disk. Default, without files: python_docs.",
        common=True,
    )
    train_split: str = option("train", "Split of the Hub data set to train heads on.")
    validation_split: str | None = option(
        None, "Split of the Hub data set to choose by. Default: validation, if there is one."
    )
    test_split: str | None = option(None, "Split of the Hub data set to measure on. Default: test, if there is one.")
    train_file: str | None = option(
        None, "Local file of training documents: json, jsonl, csv, tsv or parquet.", common=True
    )
    validation_file: str | None = option(
        None, "Local file of documents for early stopping of the heads mlp and finetune."
    )
    test_file: str | None = option(
        None,
        "Local file of test documents. Without a test part a fifth of the training documents is held out; half of it "
        "validates if no other part does.",
        common=True,
    )
    text_column: list[str] = option(["text"], "Columns of the text; several are joined by blank lines.", common=True)
    label_column: str = option(
        "label",
        "Column of the label: a string or an integer; where a document may have several, a list of them, or a vector "
        "of 0 and 1 with a place for each class.",
        common=True,
    )
    encoding: str | None = option(None, "Encoding of local text files (default: UTF-8, or what is detected).")
    strip_newsgroups: list[str] = option(
        [],
        "Parts to remove of newsgroup postings (20 Newsgroups): headers, which name the group; footers; quotes.",
        choices=["headers", "footers", "quotes"],
    )
    max_train_samples: Count | None = option(
        None, "Train on N documents at most, with the proportions of the classes. Default: all."
    )
    max_test_samples: Count | None = option(
        None,
        "Measure on N documents at most, and validate on as many, with the proportions of the classes. Default: all.",
    )


@dataclass
class CitationArguments:
    """Papers and links. Default: python_docs, with its "See also" links."""

    lra_dir: str | None = option(
        None, "Folder with the train, eval and test .tsv of Long Range Arena (label, ids, texts).", common=True
    )
    papers_file: str | None = option(
        None,
        "Table of papers, with columns id, title, abstract, and text or sections (lists of {heading, text}).",
        common=True,
    )
    train_pairs_file: str | None = option(None, "Table of pairs to train heads on, with columns label, id1, id2.")
    validation_pairs_file: str | None = option(None, "Table of pairs for early stopping, with the same columns.")
    test_pairs_file: str | None = option(None, "Table of pairs to measure on, with the same columns.")
    citations_file: str | None = option(
        None,
        "Table of links (citing, cited), in place of pairs: they are split so that no paper is in two parts.",
        common=True,
    )


@dataclass
class RankingArguments:
    """The collection: documents, queries and judgments."""

    collection: str | None = option(
        None,
        "Folder with documents, queries and judgments in the layout of BEIR (corpus.jsonl, queries.jsonl, qrels), MS "
        "MARCO, WIKIR or TREC; or a Hub data set in that of BEIR; with --queries, any corpus. Default: the sealed "
        "part of python_docs.",
        common=True,
    )
    split: str | None = option(
        None, "Split of the queries, such as train, dev or test. Default: test, or the only one.", common=True
    )
    queries: Literal["title", "first_sentence", "first_line"] | None = option(
        None,
        "Make a query of each document: take out its title, first sentence or first line. The document itself has "
        "grade 2, documents that it links to have grade 1. Default: the queries of the collection; for python_docs "
        "first_line.",
        common=True,
    )
    max_queries: Count | None = option(None, "Measure on N queries at most, drawn at random. Default: all.")
    ignore_identical_ids: bool = option(
        False,
        "Leave the document with a query's id out of its list, as BEIR does. Default: only where the texts agree too, "
        "and unless it is judged relevant.",
    )
