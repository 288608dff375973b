"""The YAML at the top of a card: where the weights come from, and under which licence."""

import logging
import re
from dataclasses import asdict, replace
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData, hf_hub_download, metadata_load
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id
from yaml import YAMLError

from docsplit.evaluation.results.markdown import inline, one_line
from docsplit.release.run_record import Licence, RunRecord, Start
from docsplit.runtime.files import JsonObject

logger = logging.getLogger(__name__)

UNKNOWN = "unknown"  # as the Hub names it
WIDGET = [  # what the Hub's page compares, where it can run the encoder
    {
        "source_sentence": "The storm kept all ships in the harbour.",
        "sentences": [
            "No boat could leave the port because of the weather.",
            "The lighthouse was built of granite, a century ago.",
            "Knead the dough, and let it rest for an hour.",
        ],
    }
]


def is_hub_name(name: object) -> bool:
    """Whether this has the form user/name, perhaps with a configuration."""
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name) is not None


def card_of(name: str) -> JsonObject:
    """Read the front matter of an encoder's card, on the Hub or in a folder; {}, perhaps with a warning, without."""
    path = Path(name) / "README.md"
    if not Path(name).exists():
        try:
            path = Path(hf_hub_download(name, "README.md"))
        except (HTTPError, OSError, ValueError) as error:
            logger.warning(f"The card of {name} cannot be read: {one_line(error)}")
            return {}
    return read_front_matter(path)


def read_front_matter(card: Path) -> JsonObject:
    """Read the YAML at the top of a card, which anyone may have written; {}, perhaps with a warning, without."""
    try:
        return metadata_load(card) or {} if card.exists() else {}
    except (OSError, ValueError, YAMLError, RecursionError) as error:
        logger.warning(
            f"{card} cannot be read, and a licence that it may state does not count: {one_line(error)[:300]}"
        )
        return {}


def start_of(name: str) -> Start:
    """Find out the base model, the licence and the language of the weights that a run starts from.

    Args:
        name: on the Hub, or a folder, whose card names the base model.
    """
    data = card_of(name)
    licence = Licence.stated_in(data)
    if licence.license is None:
        logger.warning(f"{name} states no licence: that of these weights is unknown, unless --license names one.")
        licence = replace(licence, license=UNKNOWN)
    language = data.get("language")
    if not _is_text(language):  # `no`, which YAML takes for a false, among others
        language = None
    base = data.get("base_model")
    if base is not None and not _is_text(base):
        logger.warning(f"The card of {name} has the base model {one_line(base)!r}, which is no name: it is left out.")
        base = None
    return Start(base if Path(name).exists() else name, licence, language)


def _is_text(value: object) -> bool:
    """Whether this is text, or a list of texts."""
    return all(isinstance(one, str) for one in (value if isinstance(value, list) else [value]))


def licence_of(card: Path, start: Start) -> Licence:
    """Find the licence that an earlier card of these weights states, by --license or by hand; else the start's."""
    data = read_front_matter(card)
    stated = Licence.stated_in(data)
    if stated and start and data.get("base_model") not in (None, start.base_model):  # an earlier run in this folder
        logger.warning(f"{card} has the licence of weights from another start: the new card leaves it out.")
        stated = Licence()
    return stated or start.licence


def licence_text(licence: Licence, start: Start) -> str:
    """Say in a sentence which licence the weights have."""
    name = licence.license_name or licence.license  # the name where the identifier is "other"
    if name is None:
        return "No licence was stated for these weights."
    if name == UNKNOWN:
        return "The licence of these weights is unknown: their start states none."
    is_the_start_s = start.licence.license == licence.license
    return f"These weights have the licence {inline(name)}{', as their start has' if is_the_start_s else ''}."


def as_the_hub_takes_it(licence: Licence) -> Licence:
    """Return a licence whose identifier has the form of the Hub's; another one becomes `other`, and its name."""
    if licence.license is None or re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", licence.license):
        return licence
    return replace(licence, license="other", license_name=licence.license_name or licence.license)


def valid_names(base_model: str | list[str] | None) -> str | list[str] | None:
    """Return the names of models if all have the form of names on the Hub; else None, and a warning: it refuses paths.

    A card in a folder may name anything.
    """
    try:
        for name in [base_model] if isinstance(base_model, str) else base_model or []:
            validate_repo_id(name)
    except HFValidationError:
        logger.warning(f"The base model {base_model!r} is no name on the Hub: the card names none.")
        return None
    return base_model


def metadata(
    name: str,
    run: RunRecord | None,
    licence: Licence,
    entries: list[EvalResult] | None,
    has_code: bool = False,
) -> ModelCardData:
    """Make the front matter of a card.

    Args:
        run: None where there is no record of it. Without a `start` in it, the options name a start on the Hub.
        entries: of the model index.
        has_code: the folder has code of its own, which the Hub does not run.
    """
    options, local = (run.options, run.local) if run else ({}, [])
    base: str | list[str] | None = options.get("model_name_or_path")
    corpus = options.get("corpus")
    if run and run.start is not None:
        base = run.start.base_model
    elif not is_hub_name(base) or "model_name_or_path" in local:
        base = None
    return ModelCardData(
        model_name=one_line(name),
        **asdict(as_the_hub_takes_it(licence)),
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["docsplit", "feature-extraction", "sentence-similarity"],
        language=run.start.language if run and run.start else None,
        base_model=valid_names(base),
        datasets=[corpus.split(":")[0]] if corpus and is_hub_name(corpus) and "corpus" not in local else None,
        eval_results=entries or None,
        widget=None if has_code else WIDGET,
    )
