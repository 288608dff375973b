"""The rules by which the Hub checks the front matter of a card, as far as it documents them.

The Hub checks by `POST /api/validate-yaml`, which no test reaches. The rules here are from its documentation,
https://github.com/huggingface/hub-docs: docs/hub/model-cards.md, docs/hub/repositories-licenses.md (the identifiers)
and modelcard.md (the model index).
"""

import re
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

LICENCES = frozenset("""
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl
    lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib
    pddl lgpl-lr deepfloyd-if-license llama2 gemma unknown other
""".split())  # fmt: skip # noqa: SIM905


def front_matter(card: str) -> dict[str, Any]:
    """Read the YAML at the top of a card; {} without any."""
    match = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    return yaml.safe_load(match[1]) if match else {}


def problems(card: str) -> list[str]:
    """List what the Hub would refuse, or not show."""
    data = front_matter(card)
    ModelCard(card)  # a model index that lacks what is required raises
    licence, wrong = data.get("license"), []
    if licence not in LICENCES | {None} or (licence == "other") != bool(data.get("license_name")):
        wrong.append(f"license {licence!r} is not among the Hub's, or has a name")
    for language in _listed(data.get("language")):
        if not re.fullmatch("[a-z]{2,3}|code|multilingual", str(language)):
            wrong.append(f"language {language!r} is no code of ISO 639")
    for name in [*_listed(data.get("base_model")), *_listed(data.get("datasets"))]:
        try:
            validate_repo_id(name)
        except HFValidationError:
            wrong.append(f"{name!r} is no name on the Hub")
    results = [result for model in data.get("model-index", []) for result in model["results"]]
    texts = [text for result in results for text in (result["task"]["type"], *result["dataset"].values())]
    texts += [metric["type"] for result in results for metric in result["metrics"]]
    for value in [*texts, *data.get("tags", [])]:
        if not (isinstance(value, str) and value):
            wrong.append(f"{value!r} is no text")
    return wrong


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
