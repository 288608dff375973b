"""Options that choose what is measured on: labelled documents, citations, rankings. Nothing heavy is imported."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from docsplit.runtime.options import COMMON


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

    dataset_name: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Hub data set, NAME or NAME:CONFIGURATION, or a folder of save_to_disk. Default, without files: "
            "python_docs.",
        },
    )
    train_split: str = field(default="train", metadata={"help": "Split of the Hub data set to train heads on."})
    validation_split: str | None = field(
        default=None,
        metadata={"help": "Split of the Hub data set to choose by. Default: validation, if there is one."},
    )
    test_split: str | None = field(
        default=None, metadata={"help": "Split of the Hub data set to measure on. Default: test, if there is one."}
    )
    train_file: str | None = field(
        default=None,
        metadata={COMMON: True, "help": "Local file of training documents: json, jsonl, csv, tsv or parquet."},
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "Local file of documents for early stopping of the heads mlp and finetune."}
    )
    test_file: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Local file of test documents. Without a test part a fifth of the training documents is held "
            "out; half of it validates if no other part does.",
        },
    )
    text_column: list[str] = field(
        default_factory=lambda: ["text"],
        metadata={COMMON: True, "help": "Columns of the text; several are joined by blank lines."},
    )
    label_column: str = field(
        default="label",
        metadata={
            COMMON: True,
            "help": "Column of the label: a string or an integer; where a document may have several, a list of them, "
            "or a vector of 0 and 1 with a place for each class.",
        },
    )
    encoding: str | None = field(
        default=None, metadata={"help": "Encoding of local text files (default: UTF-8, or what is detected)."}
    )
    strip_newsgroup_headers: bool = field(
        default=False,
        metadata={"help": "Remove headers, footers and quotes, which give a newsgroup (20 Newsgroups) away."},
    )
    max_train_samples: int | None = field(
        default=None,
        metadata={"help": "Train on N documents at most, with the proportions of the classes. Default: all."},
    )
    max_test_samples: int | None = field(
        default=None,
        metadata={
            "help": "Measure on N documents at most, and validate on as many, with the proportions of the classes. "
            "Default: all."
        },
    )


@dataclass
class CitationArguments:
    """Papers and links. Default: python_docs, with its "See also" links."""

    lra_dir: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Folder with the train, eval and test .tsv of Long Range Arena (label, ids, texts).",
        },
    )
    papers_file: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Table of papers, with columns id, title, abstract, and text or sections (lists of "
            "{heading, text}).",
        },
    )
    train_pairs_file: str | None = field(
        default=None, metadata={"help": "Table of pairs to train heads on, with columns label, id1, id2."}
    )
    validation_pairs_file: str | None = field(
        default=None, metadata={"help": "Table of pairs for early stopping, with the same columns."}
    )
    test_pairs_file: str | None = field(
        default=None, metadata={"help": "Table of pairs to measure on, with the same columns."}
    )
    citations_file: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Table of links (citing, cited), in place of pairs: they are split so that no paper is in two "
            "parts.",
        },
    )


@dataclass
class RankingArguments:
    """The collection: documents, queries and judgments."""

    collection: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Folder with documents, queries and judgments in the layout of BEIR (corpus.jsonl, "
            "queries.jsonl, qrels), MS MARCO, WIKIR or TREC; or a Hub data set in that of BEIR; with --queries, any "
            "corpus. Default: the sealed part of python_docs.",
        },
    )
    split: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Split of the queries, such as train, dev or test. Default: test, or the only one.",
        },
    )
    queries: Literal["title", "first_sentence", "first_line"] | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Make a query of each document: take out its title, first sentence or first line. The document "
            "itself has grade 2, documents that it links to have grade 1. Default: the queries of the collection; "
            "for python_docs first_line.",
        },
    )
    max_queries: int | None = field(
        default=None, metadata={"help": "Measure on N queries at most, drawn at random. Default: all."}
    )
    ignore_identical_ids: bool = field(
        default=False,
        metadata={
            "help": "Leave the document with a query's id out of its list, as BEIR does. Default: only where the "
            "texts agree too, and unless it is judged relevant."
        },
    )
