"""The record and the README.md of an encoder that was adapted to documents: encoder and words, words alone, or plain.

The record is adapt.json. As with the cards of pretraining, every number of the card is in a file of its folder.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from docsplit.embedding.lexical_ridge import RidgeFacts
from docsplit.evaluation.results.markdown import bold, code, inline, markdown_table, python_literal
from docsplit.modeling.saving import trust_argument
from docsplit.release.card_results import evaluation_text, model_index, read_evaluations
from docsplit.release.front_matter import licence_of, licence_text, metadata
from docsplit.release.run_record import Licence, RunRecord, Start
from docsplit.runtime.command import command_name
from docsplit.runtime.files import checked, read_json, write_text

ADAPTATION_FILE = "adapt.json"
KINDS = ("words", "static", "plain")  # of what is written
TEMPLATE = Path(__file__).parent / "adapted_card_template.md"
PARTS = {"validation": "Validation", "test": "Test"}
MEASURES = {"5shot_accuracy": "5 labels a class", "accuracy": "all labels"}
PRIVACY = (
    "Token vectors carry the vocabulary of the documents: anyone with these files sees which tokens occur in two or "
    "more of them, and about how frequent they are. No text is in the files."
)
PRIVACY_OF_PLAIN = "The files hold the encoder alone, and no words of the documents."
HASHES = (
    " `training_documents.safetensors` has hashes of the documents and of some runs of five words: anyone with a "
    "document can tell whether it was among them."
)


@dataclass(frozen=True)
class Candidate:
    """What could be written, and its accuracies (`docsplit.evaluation.heads.frozen.probe_accuracy`)."""

    name: str
    weight: float | None  # of the words beside the encoder
    validation: dict[str, float]
    test: dict[str, float]

    @property
    def label(self) -> str:
        """Return the name, with a weight that is not 1."""
        return label_of(self.name, self.weight)


def label_of(name: str, weight: float | None) -> str:
    """Return the name of a candidate, with a weight of the words that is not 1."""
    return name if weight in (None, 1) else f"{name}, weight {weight:g}"


@dataclass(frozen=True)
class Adaptation:
    """What was made of which encoder and documents.

    Attributes:
        kind: of `KINDS`.
        kept: the label of what was written.
        encoder: the start's name; of a folder its name alone.
        language: of the start, as cards on the Hub have it.
        documents: what they are called.
        facts: of the words; None where they were not fitted.
        recipe: of a training before; None without.
        probe: the labelled documents; None without.
    """

    kind: str
    kept: str
    weight: float | None
    encoder: str
    start: Start
    language: str | list[str] | None
    documents: str
    documents_are_local: bool
    facts: RidgeFacts | None
    recipe: str | None = None
    probe: str | None = None
    candidates: Sequence[Candidate] = ()
    seconds: dict[str, float] = field(default_factory=dict)  # of each step
    hardware: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    commit: str | None = None
    hub_model_id: str | None = None

    def write(self, directory: Path) -> None:
        """Write adapt.json."""
        values = asdict(self)
        values["start"] = asdict(self.start)
        write_text(directory / ADAPTATION_FILE, json.dumps(values, indent=2) + "\n")

    @classmethod
    def read(cls, directory: Path) -> "Adaptation | None":
        """Read the record of a folder; None if it has none.

        Raises:
            ValueError: naming file and key, if a value is missing or of another type.
        """
        path = directory / ADAPTATION_FILE
        if not path.exists():
            return None
        record = checked(read_json(path), cls, str(path))
        if record.kind not in KINDS:
            raise ValueError(f"{path}: kind is {record.kind!r}, expected one of {KINDS}.")
        for candidate in record.candidates:
            for part in PARTS:
                if missing := MEASURES.keys() - getattr(candidate, part).keys():
                    raise ValueError(f"{path}: candidates: {part} has no {sorted(missing)[0]}.")
        if (facts := record.facts) is None:
            return record
        try:
            shares = {float(penalty): share for penalty, share in facts.shares_explained.items()}  # JSON has text
        except ValueError as error:
            raise ValueError(f"{path}: facts: shares_explained: {error}.") from error
        if facts.penalty not in shares:
            raise ValueError(f"{path}: facts: shares_explained has no share of the penalty {facts.penalty:g}.")
        return replace(record, facts=replace(facts, shares_explained=shares))


def candidates_table(candidates: Sequence[Candidate], kept: str) -> str:
    """Return the accuracies of all candidates as a Markdown table, in percent; what was written is bold."""
    header = ["Accuracy", *(f"{part}, {labels}" for part in PARTS.values() for labels in MEASURES.values())]
    rows = []
    for candidate in candidates:
        measured = [getattr(candidate, part)[measure] for part in PARTS for measure in MEASURES]
        name = bold(candidate.label) if candidate.label == kept else candidate.label
        rows.append([name, *(f"{100 * value:.1f}" for value in measured)])
    return markdown_table(header, rows)


def write_adapted_card(directory: Path, address: str | None = None, licence: str | None = None) -> str:
    """Write README.md of an adapted encoder, and return its text.

    Args:
        address: user/name on the Hub. Default: where it was pushed, else the name of the folder.
        licence: of the weights, by its identifier on the Hub. Default: that of the card before, else of the start.

    Raises:
        ValueError: if the folder has no adapt.json.
    """
    record = Adaptation.read(directory)
    if record is None:
        raise ValueError(
            f"{directory} has no {ADAPTATION_FILE}: it is no folder that `{command_name('adapt.py')}` wrote."
        )
    address = address or record.hub_model_id or directory.resolve().name
    stated = Licence(licence) if licence else licence_of(directory / "README.md", record.start)
    evaluations = read_evaluations(directory)
    trust = trust_argument(directory)
    has_hashes = (directory / "training_documents.safetensors").exists()
    card = ModelCard.from_template(
        _front_matter(record, address, stated, evaluations, bool(trust)),
        template_path=str(TEMPLATE),
        name=inline(address.split("/")[-1]),
        what=_what(record),
        use=_use(record, python_literal(address), trust),
        words=_words(record),
        candidates=_candidates(record),
        evaluation=evaluation_text({}, evaluations) if evaluations else "",
        privacy=(PRIVACY if record.kind != "plain" else PRIVACY_OF_PLAIN) + (HASHES if has_hashes else ""),
        licence=licence_text(stated, record.start),
    )
    write_text(directory / "README.md", str(card))
    return str(card)


def _front_matter(record: Adaptation, address: str, licence: Licence, evaluations: Any, has_code: bool) -> Any:
    local = ["corpus"] if record.documents_are_local else []
    options = {"corpus": record.documents} | ({"probe_corpus": record.probe} if record.probe else {})
    run = RunRecord(
        options=options, start=record.start, local=local, hardware=record.hardware, processes=1, commit=record.commit
    )
    results = {}
    for candidate in record.candidates:
        if candidate.label == record.kept:
            results = {f"probe_after_{measure}": candidate.test[measure] for measure in MEASURES}
    data = metadata(address, run, licence, model_index(options, results, evaluations), has_code)
    data.language = record.language
    if record.kind == "static":
        data.tags = [*(data.tags or []), "static-embeddings", "model2vec"]
    return data


def _what(record: Adaptation) -> str:
    """Say what the parts are."""
    encoder, documents = str(code(record.encoder)), code(record.documents)
    if record.recipe and record.kept != "start":
        encoder += f", trained on {documents} by the recipe {code(record.recipe)},"
    if record.kind == "static":
        return (
            f"A static encoder: a vector for each token, fitted to what {encoder} says of {documents}. The vector of "
            "a text is the mean of its token vectors, at unit length; texts of any length are read whole, as fast as "
            "they are tokenised."
        )
    if record.kind == "words":
        weight = "" if record.weight == 1 else f", with weight {record.weight:g}"
        return (
            f"{encoder} and, added to its vectors{weight}, the words of whole documents: "
            f"a vector for each token, fitted to {documents}. The dimension and the space are the encoder's."
        )
    if record.kept == "start":
        return f"{encoder}, unchanged: words of {documents} were tried, and did not make it better."
    return f"{encoder} without words: they were tried, and did not make it better."


def _use(record: Adaptation, address: str, trust: str) -> str:
    lines = ["from sentence_transformers import SentenceTransformer", ""]
    lines += [f"model = SentenceTransformer({address}{trust})"]
    lines += ['documents = model.encode_document(["A long document ...", "Another one ..."])']
    lines += ['queries = model.encode_query(["a question"])', "similarities = model.similarity(queries, documents)"]
    parts = ["\n".join(["```python", *lines, "```"])]
    if record.kind == "words":
        parts.append(
            "Queries go through `encode_query`, which is the encoder alone; `encode_document` and `encode` add the "
            "words of the whole text, also of what the encoder does not read. `AutoModel.from_pretrained` loads the "
            "encoder without words."
        )
    elif record.kind == "static":
        lines = ["from model2vec import StaticModel", "", f"model = StaticModel.from_pretrained({address})"]
        lines += ['embeddings = model.encode(["A long document ..."], max_length=None)']
        parts.append("With model2vec, `max_length=None` reads texts whole:")
        parts.append("\n".join(["```python", *lines, "```"]))
    return "\n\n".join(parts)


def _words(record: Adaptation) -> str:
    """Say what words were fitted on, and how well they explain the encoder's vectors."""
    facts = record.facts
    if facts is None:
        return "There are none: words explain nothing of the encoder's vectors of documents left out."
    rows = [("fitted on", code(record.documents)), ("documents", f"{facts.documents:,}")]
    left_out = {"empty, left out": facts.empty, "copies, left out": facts.duplicates}
    left_out["that share no token with another"] = facts.without_pieces
    rows += [(f"documents {name}", f"{count:,}") for name, count in left_out.items() if count]
    rows += [
        ("tokens with a vector", f"{facts.pieces:,}"),
        ("a token that a document has c times counts", f"{'1 + ln c' if facts.sublinear else 'c'} times"),
        ("neighbours that targets are averaged with", str(facts.neighbours)),
        ("ridge penalty", f"{facts.penalty:g}"),
        ("variance of the encoder's vectors explained, leave-one-out", f"{100 * facts.share_explained:.1f} %"),
    ]
    rows += [(f"seconds: {step}", f"{seconds:,.1f}") for step, seconds in record.seconds.items()]
    rows += [("hardware", inline(record.hardware)), ("commit of the code", code(record.commit or "unknown"))]
    unused = "" if record.kind != "plain" else "These words were tried, and are not in the files.\n\n"
    return unused + markdown_table(["Words", ""], rows)


def _candidates(record: Adaptation) -> str:
    if not record.candidates:
        return ""
    table = candidates_table(record.candidates, record.kept)
    return (
        f"{table}\n\nPercent, logistic regression on labelled documents ({code(record.probe)}); the numbers with 5 "
        "labels a class are means over 10 draws. The bold row is in these files. Validation documents chose it; test "
        "documents chose nothing."
    )
