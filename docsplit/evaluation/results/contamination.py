"""The note under tables on test documents that an encoder was pretrained on."""

from collections.abc import Sequence

from docsplit.data.seen_documents import SHARES
from docsplit.evaluation.results.records import Row
from docsplit.evaluation.results.tables import names_of


def contamination_note(rows: Sequence[Row]) -> str:
    """Return the share of seen test documents of each encoder, as a sentence; "" where the rows have none."""
    names = names_of(rows)
    shares = {
        names[row.encoder]: [row.facts[share] for share in SHARES]
        for row in rows
        if row.facts.get("num_parameters") and SHARES[0] in row.facts  # a baseline was not pretrained
    }
    if not shares:
        return ""
    text = "; ".join(f"{name} {_text_of(*both)}" for name, both in shares.items())
    return f"Test documents seen in pretraining (and near-duplicates included): {text}."


def _text_of(seen: float | None, near: float | None) -> str:
    if seen is None:
        return "unknown"
    return f"{100 * seen:.1f} % ({'unknown' if near is None else f'{100 * near:.1f} %'})"
