"""The options of scripts that say which labelled documents, or which papers and links. Nothing heavy is imported."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class LabelledArguments:
    """The labelled documents."""

    dataset_name: str | None = field(
        default=None,
        metadata={"help": "Hub data set NAME or NAME:CONFIGURATION. Default, without files: python_docs."},
    )
    train_split: str = field(default="train", metadata={"help": "Of the Hub data set."})
    validation_split: str | None = field(default=None, metadata={"help": "Default: validation, where it has one."})
    test_split: str | None = field(default=None, metadata={"help": "Default: test, where it has one."})
    train_file: str | None = field(default=None, metadata={"help": "json, jsonl, csv, tsv or parquet."})
    validation_file: str | None = field(default=None, metadata={"help": "For early stopping of mlp and finetune."})
    test_file: str | None = field(
        default=None,
        metadata={
            "help": "If there is no test part, a fifth of train is held out, half of it for validation if need be."
        },
    )
    text_column: list[str] = field(
        default_factory=lambda: ["text"], metadata={"help": "One or several, joined by a blank line."}
    )
    label_column: str = field(
        default="label", metadata={"help": "Strings or integers; lists of them if a document has several labels."}
    )
    strip_newsgroup_headers: bool = field(
        default=False, metadata={"help": "Without headers, footers and quotes, which give a newsgroup away."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "At most so many, stratified."})
    max_test_samples: int | None = field(default=None, metadata={"help": "At most so many, stratified."})


@dataclass
class CitationArguments:
    """Papers and links; without any of these options python_docs, with its "See also" links."""

    lra_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with Long Range Arena's train, eval and test .tsv (label, ids, texts)."},
    )
    papers_file: str | None = field(
        default=None, metadata={"help": "Table of papers: id, title, abstract, text or sections [{heading, text}]."}
    )
    train_pairs_file: str | None = field(default=None, metadata={"help": "Pairs to train on: label, id1, id2."})
    validation_pairs_file: str | None = field(default=None, metadata={"help": "Pairs for early stopping."})
    test_pairs_file: str | None = field(default=None, metadata={"help": "Pairs to measure on."})
    citations_file: str | None = field(
        default=None,
        metadata={"help": "In place of pairs: links (citing, cited), to make splits that share no paper."},
    )


@dataclass
class RankingArguments:
    """The collection: documents, queries and judgments."""

    collection: str | None = field(
        default=None,
        metadata={
            "help": "Folder with corpus.jsonl, queries.jsonl and qrels (BEIR), or the files of MS MARCO, WIKIR or "
            "TREC; or a data set on the Hub in BEIR's form; with --queries a corpus. Default: the sealed part of "
            "python_docs."
        },
    )
    split: str | None = field(
        default=None, metadata={"help": "Of the queries: train, dev, test ... Default: test, or the only one."}
    )
    queries: Literal["title", "first_sentence", "first_line"] | None = field(
        default=None,
        metadata={
            "help": "Make queries of this of each document, and take it out: its own document has grade 2, those it "
            "links to 1. Default: the queries that are judged; of python_docs first_line."
        },
    )
    max_queries: int | None = field(default=None, metadata={"help": "At most so many, drawn at random."})

    def __post_init__(self) -> None:
        if self.max_queries is not None and self.max_queries < 1:
            raise ValueError(f"--max_queries is {self.max_queries}: expected 1 or more.")
