"""Options that choose what is measured on: labelled documents, citations, rankings. Nothing heavy is imported."""

from dataclasses import dataclass, field
from typing import Literal

from docsplit.runtime.help import COMMON


@dataclass
class LabelledArguments:
    """The labelled documents."""

    dataset_name: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Hub data set NAME or NAME:CONFIGURATION. Default, without files: python_docs.",
        },
    )
    train_split: str = field(default="train", metadata={"help": "Split of the Hub data set."})
    validation_split: str | None = field(
        default=None, metadata={"help": "Split of the Hub data set. Default: validation, if any."}
    )
    test_split: str | None = field(
        default=None, metadata={"help": "Split of the Hub data set. Default: test, if any."}
    )
    train_file: str | None = field(
        default=None, metadata={COMMON: True, "help": "Local documents: json, jsonl, csv, tsv or parquet."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "For early stopping of mlp and finetune."})
    test_file: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Without a test part, a fifth of train is held out; half of it validates, if nothing else does.",
        },
    )
    text_column: list[str] = field(
        default_factory=lambda: ["text"],
        metadata={COMMON: True, "help": "One column or several, joined by a blank line."},
    )
    label_column: str = field(
        default="label",
        metadata={
            COMMON: True,
            "help": "Column of strings or integers, or of lists of them: several labels a document.",
        },
    )
    strip_newsgroup_headers: bool = field(
        default=False, metadata={"help": "Strip headers, footers and quotes, which give a newsgroup away."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Most training documents; each class keeps its proportion."}
    )
    max_test_samples: int | None = field(
        default=None, metadata={"help": "Most test documents, and most for validation; as above."}
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
        metadata={COMMON: True, "help": "Table of papers: id, title, abstract, text or sections [{heading, text}]."},
    )
    train_pairs_file: str | None = field(default=None, metadata={"help": "Pairs to train on: label, id1, id2."})
    validation_pairs_file: str | None = field(default=None, metadata={"help": "Pairs for early stopping."})
    test_pairs_file: str | None = field(default=None, metadata={"help": "Pairs to measure on."})
    citations_file: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Links (citing, cited) in place of pairs: splits that share no paper are made of them.",
        },
    )


@dataclass
class RankingArguments:
    """The collection: documents, queries and judgments."""

    collection: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Folder with corpus.jsonl, queries.jsonl and qrels (BEIR), or the files of MS MARCO, WIKIR or "
            "TREC; or a data set on the Hub in the form of BEIR; with --queries a corpus. Default: the sealed part "
            "of python_docs.",
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
            "help": "Take this out of each document and make a query of it: its document has grade 2, those that it "
            "links to 1. Default: judged queries; python_docs has first_line.",
        },
    )
    max_queries: int | None = field(default=None, metadata={"help": "Most queries; they are drawn at random."})

    def __post_init__(self) -> None:
        if self.max_queries is not None and self.max_queries < 1:
            raise ValueError(f"--max_queries is {self.max_queries}: expected 1 or more.")
