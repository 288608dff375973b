"""The collections of `benchmarks.studies.search.report`: judged ones, and documents whose titles or first lines ask.

A query that was taken out of a document is not in that document any more (`docsplit.data.sets.rankings`).
"""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from docsplit.data.readers.rows import join_sections
from docsplit.data.sets.labelled import strip_newsgroups
from docsplit.data.sets.rankings import Ranking, load_collection
from docsplit.data.sets.set_arguments import RankingArguments

DRAWN = 2500  # documents of a large corpus
SUBJECT = re.compile(r"^Subject:\s*(?:Re:\s*)*(.*)$", re.IGNORECASE | re.MULTILINE)


def judged(folder: str) -> Callable[[Path], Ranking]:
    """Return how to load a collection in BEIR's layout."""
    return lambda data_dir: load_collection(RankingArguments(str(data_dir / folder)))


def by_title(corpus: pd.DataFrame, **options: Any) -> Ranking:
    """Ask for each document of a corpus by its title."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.parquet"
        corpus.to_parquet(path)
        return load_collection(RankingArguments(str(path), queries="title", split="all", **options))


def wikipedia(data_dir: Path) -> Ranking:
    """Search a draw of articles for their titles."""
    return by_title(pd.read_parquet(data_dir / "wikipedia" / "train.parquet").sample(DRAWN, random_state=0))


def newsgroups(data_dir: Path) -> Ranking:
    """Search a draw of posts for their subjects; all posts of a thread are relevant.

    Posts have neither headers, which hold the subject, nor what they quote of other posts.
    """
    posts = pd.read_parquet(data_dir / "20newsgroups" / "test.parquet").sample(DRAWN, random_state=0)
    subjects = [match[1] if (match := SUBJECT.search(text)) else "" for text in posts.text]
    posts = posts.assign(title=subjects, text=posts.text.map(strip_newsgroups))
    return by_title(posts[posts.text.str.strip() != ""][["id", "title", "text"]])


def papers(data_dir: Path) -> pd.DataFrame:
    """Return papers of computational linguistics: abstract and body, and the papers that each cites."""
    rows = pd.read_parquet(data_dir / "aan" / "papers.parquet")
    cited = pd.read_csv(data_dir / "aan" / "citations.tsv", sep="\t", names=["id", "links"], header=0, dtype=str)
    bodies = [join_sections({"sections": list(sections)}) for sections in rows.sections]
    texts = [f"{abstract or ''}\n\n{body}" for abstract, body in zip(rows.abstract, bodies)]
    return rows[["id", "title"]].assign(text=texts).merge(cited.groupby("id").links.agg(list), "left", on="id")


def citations(data_dir: Path) -> Ranking:
    """Search papers for those that a paper cites, by its title; the paper itself is left out."""
    rows = papers(data_dir)
    links = [cited if isinstance(cited, list) else [] for cited in rows.links]
    ranking = by_title(rows.assign(links=links), ignore_identical_ids=True)
    cited = {query: {name: 1 for name in ranking.judgments[query] if name != query} for query in ranking.query_ids}
    ranking = replace(ranking, judgments=cited)
    return ranking.with_queries([row for row, query in enumerate(ranking.query_ids) if cited[query]])


def dbpedia(data_dir: Path) -> Ranking:
    """Search first paragraphs for their first sentences."""
    file = str(data_dir / "dbpedia" / "test.jsonl")
    return load_collection(RankingArguments(file, "all", queries="first_sentence", max_queries=1000))


@dataclass
class Collection:
    """How a collection is loaded, and what asks and is found in a reader's words."""

    words: str
    load: Callable[[Path], Ranking]


SETS = {
    "scifact": Collection("SciFact: claims, abstracts that support or refute them", judged("scifact")),
    "cacm": Collection("CACM: questions, abstracts on computing", judged("cacm")),
    "cranfield": Collection("Cranfield: questions, abstracts on aerodynamics", judged("cranfield")),
    "pubmedqa": Collection("PubMedQA: questions, the abstract that answers", judged("pubmedqa")),
    "qmsum": Collection("QMSum: questions, pieces of meetings", judged("qmsum")),
    "wikipedia_titles": Collection("Wikipedia: titles, their articles", wikipedia),
    "docstrings": Collection(
        "Python: first lines, the rest of the docstring", lambda _: load_collection(RankingArguments())
    ),
    "aan_titles": Collection(
        "ACL papers: titles, their papers", lambda data_dir: by_title(papers(data_dir).drop(columns="links"))
    ),
    "aan_citations": Collection("ACL papers: titles, papers that these cite", citations),
    "newsgroup_subjects": Collection("20 Newsgroups: subjects, posts of the thread", newsgroups),
    "dbpedia_sentences": Collection("DBpedia: first sentences, the rest of the paragraph", dbpedia),
}
