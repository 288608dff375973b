"""The YAML at the top of a card: where the weights come from, and under which licence."""

import logging
import re
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HTTPError
from yaml import YAMLError

logger = logging.getLogger(__name__)

LICENCE_KEYS = ("license", "license_name", "license_link")
UNKNOWN = "unknown"  # as the Hub names it


def is_hub_name(name: object) -> bool:
    """Whether this has the form user/name, perhaps with a configuration."""
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name) is not None


def card_of_start(name: str) -> dict[str, Any]:
    """What the card of a run says of its start: `base_model`, a name on the Hub or None, and its licence.

    Args:
        name: on the Hub, or a folder; of a folder the base model is the one that its own card names.
    """
    is_folder = Path(name).exists()
    path = Path(name) / "README.md" if is_folder else name
    data: dict[str, Any] = {}
    try:
        if not is_folder or Path(path).exists():
            data = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except (HTTPError, OSError, ValueError, YAMLError) as error:
        logger.warning(f"The card of {name} cannot be read: {' '.join(str(error).split())}")
    start = {"base_model": data.get("base_model") if is_folder else name}
    start |= {key: data[key] for key in LICENCE_KEYS if data.get(key)}
    if "license" not in start:
        logger.warning(f"{name} states no licence: that of these weights is unknown, unless --license names one.")
        start["license"] = UNKNOWN
    return start


def licence_of(card: Path, start: dict[str, Any]) -> dict[str, Any]:
    """What an earlier card of these weights says, with --license or on the Hub; else the start's.

    Args:
        start: of `card_of_start`; empty for a random start.
    """
    try:
        data = ModelCard.load(card, ignore_metadata_errors=True).data.to_dict() if card.exists() else {}
    except (ValueError, YAMLError) as error:
        logger.warning(f"{card} cannot be read, and is written anew without a licence that it may state: {error}")
        data = {}
    stated = {key: data[key] for key in LICENCE_KEYS if data.get(key)}
    if stated and start and data.get("base_model") not in (None, start["base_model"]):  # an earlier run in this folder
        logger.warning(f"{card} has the licence of weights from another start, which is left out.")
        stated = {}
    return stated or {key: start[key] for key in LICENCE_KEYS if key in start}


def licence_text(licence: dict[str, Any], start: dict[str, Any]) -> str:
    """The sentence on the licence of the weights."""
    name = licence.get("license_name", licence.get("license"))  # the name where the identifier is "other"
    if name is None:
        return "None was stated for these weights."
    if name == UNKNOWN:
        return "That of these weights is unknown: their start states none."
    is_the_start_s = start.get("license") == licence.get("license")
    return f"These weights: {name}{', which is that of their start' if is_the_start_s else ''}."


def metadata(
    name: str, run: dict[str, Any], licence: dict[str, Any], entries: list[EvalResult] | None
) -> ModelCardData:
    """The YAML at the top.

    Args:
        run: run.json; a record of before `start` was kept in it names a start on the Hub among its options.
        entries: of the model index.
    """
    base, corpus = (run.get("options", {}).get(option) for option in ("model_name_or_path", "corpus"))
    local = run.get("local", [])
    if "start" in run:
        base = run["start"].get("base_model")
    elif not is_hub_name(base) or "model_name_or_path" in local:
        base = None
    return ModelCardData(
        model_name=" ".join(name.split()),
        **licence,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["docsplit", "feature-extraction", "sentence-similarity"],
        base_model=base,
        datasets=[corpus.split(":")[0]] if is_hub_name(corpus) and "corpus" not in local else None,
        eval_results=entries or None,
    )
