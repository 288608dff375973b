"""The rules by which the Hub checks the front matter of a card, as far as it documents them.

The Hub checks by `POST /api/validate-yaml`, which no test reaches. The rules here are from its documentation,
https://github.com/huggingface/hub-docs: docs/hub/model-cards.md, docs/hub/repositories-licenses.md (the identifiers)
and modelcard.md (the model index).
"""

import re
from typing import Any

import yaml
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
TASKS = {  # of text
    "feature-extraction", "fill-mask", "sentence-similarity", "text-classification", "text-ranking",
}  # fmt: skip


def front_matter(card: str) -> dict[str, Any]:
    """Read the YAML at the top of a card; {} without any."""
    match = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    return yaml.safe_load(match[1]) if match else {}


def problems(card: str) -> list[str]:
    """List what the Hub would refuse, or not show."""
    data = front_matter(card)
    wrong = [*_licence_problems(data), *_model_index_problems(data)]
    for language in _listed(data.get("language")):
        if not re.fullmatch("[a-z]{2,3}|code|multilingual", str(language)):
            wrong.append(f"language {language!r} is no code of ISO 639")
    for key in ("base_model", "datasets"):
        for name in _listed(data.get(key)):
            try:
                validate_repo_id(name)
            except HFValidationError:
                wrong.append(f"{key} {name!r} is no name on the Hub")
    if data.get("pipeline_tag") not in TASKS:
        wrong.append(f"pipeline_tag {data.get('pipeline_tag')!r} is no task")
    for key in ("tags", "datasets", "metrics"):
        if not all(isinstance(value, str) and value for value in data.get(key, [])):
            wrong.append(f"{key} are not all strings")
    for example in data.get("widget", []):  # of sentence similarity
        if {*example} != {"source_sentence", "sentences"} or not all(map(str.strip, example["sentences"])):
            wrong.append(f"widget {example!r} is no example of sentence similarity")
    return wrong


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _licence_problems(data: dict[str, Any]) -> list[str]:
    licence, name = data.get("license"), data.get("license_name")
    if licence is None:
        return ["license_name without license"] if name else []
    if licence not in LICENCES:
        return [f"license {licence!r} is not among the Hub's"]
    if (licence == "other") != bool(name):
        return ["license_name is for `license: other`, which needs one"]
    return []


def _model_index_problems(data: dict[str, Any]) -> list[str]:
    wrong = []
    for model in data.get("model-index", []):
        if not isinstance(model.get("name"), str):
            wrong.append("model-index without a name")
        for result in model["results"]:
            required = [result["task"].get("type"), result["dataset"].get("type"), result["dataset"].get("name")]
            required += [metric.get("type") for metric in result["metrics"]]
            if not result["metrics"] or not all(isinstance(value, str) and value for value in required):
                wrong.append(f"model-index: {result} lacks what is required")
            if not all(isinstance(metric.get("value"), int | float) for metric in result["metrics"]):
                wrong.append(f"model-index: {result} has a value that is no number")
    return wrong
