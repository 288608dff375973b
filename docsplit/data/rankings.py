"""Documents, queries, and which documents are relevant to a query: what search is measured on."""

import csv
from dataclasses import dataclass
from pathlib import Path

from docsplit.data.corpora import load_corpus


@dataclass
class Ranking:
    """A collection of documents with judged queries."""

    document_ids: list[str]
    documents: list[str]
    query_ids: list[str]
    queries: list[str]
    judgments: dict[str, dict[str, int]]  # query -> document -> grade, above 0 where relevant


def load_ranking(folder: str | Path) -> Ranking:
    """Read corpus.jsonl, queries.jsonl and qrels.tsv (or the only file of qrels/) as BEIR writes them.

    A document is its title and text, a blank line between them unless the text begins with the title. Queries without
    a relevant document are left out: no score is defined for them.

    Raises:
        ValueError: if a file or column is missing, or a judgment names no document or query of the files.
    """
    folder = Path(folder)
    files = [folder / "qrels.tsv", *sorted(folder.glob("qrels/*.tsv"))]
    judged = [file for file in files if file.exists()]
    if len(judged) != 1 or not all((folder / name).exists() for name in ("corpus.jsonl", "queries.jsonl")):
        raise ValueError(f"{folder} should hold corpus.jsonl, queries.jsonl and one qrels.tsv, or qrels/NAME.tsv.")
    documents = {str(row["_id"]): _text_of(row) for row in load_corpus(str(folder / "corpus.jsonl"))}
    queries = {str(row["_id"]): str(row["text"]) for row in load_corpus(str(folder / "queries.jsonl"))}
    judgments: dict[str, dict[str, int]] = {}
    with judged[0].open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            query, document = row["query-id"], row["corpus-id"]
            if query not in queries or document not in documents:
                raise ValueError(
                    f"{judged[0]} judges document {document} for query {query}: one of them is not there."
                )
            judgments.setdefault(query, {})[document] = int(row["score"])
    judgments = {query: grades for query, grades in judgments.items() if max(grades.values()) > 0}
    kept = [query for query in queries if query in judgments]
    return Ranking(list(documents), list(documents.values()), kept, [queries[query] for query in kept], judgments)


def _text_of(row: dict[str, str]) -> str:
    title, text = row.get("title") or "", row["text"] or ""
    return text if text.startswith(title) else f"{title}\n\n{text}"
