"""The README.md of a checkpoint, made from the files of its folder alone: every number of the card is in one of them.

    python -m docsplit.release.model_card outputs/docsplit [--license apache-2.0] [--hub_model_id you/docsplit]

The files are config.json, `all_results.json` and `run.json` of the pretraining, `evaluations/*/results.json`, which
the evaluation scripts put there with --push_results, and an earlier card for its licence.
"""

import json
import logging
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from docsplit.data.views import QUERY_DOCUMENT
from docsplit.evaluation.results.data_names import without_folders
from docsplit.evaluation.results.markdown import code, inline, markdown_table, one_line, python_literal
from docsplit.evaluation.results.report import read_rows, records
from docsplit.modeling.families.table import family_of
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.pretrained import (
    HEAD_FILE,
    Settings,
    check_types,
    current_settings,
    has_pooler,
    prompt_of,
    read_config,
    similarity_of,
)
from docsplit.modeling.saving import trust_argument
from docsplit.modeling.vectors import dense_configs, describe_dense, embedding_width, normalizes
from docsplit.release.adapted_card import ADAPTATION_FILE, write_adapted_card
from docsplit.release.card_results import (
    EVALUATIONS,
    CardEvaluation,
    evaluation_text,
    model_index,
    read_evaluations,
    read_json,
    read_results,
    without_paths,
)
from docsplit.release.front_matter import is_hub_name, licence_of, licence_text, metadata
from docsplit.release.hub import download_card_files, push_at_the_end
from docsplit.release.run_record import RUN_FILE, Licence, RunRecord, Start
from docsplit.runtime.command import as_command
from docsplit.runtime.files import JsonObject, write_text
from docsplit.runtime.options import CommandParser, add_plugin

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).parent / "card_template.md"
PAPERS = {
    "docsplit": "Wang, Izbicki: DocSplit: Simple Contrastive Pretraining for Large Document Embeddings. Findings of "
    "EMNLP 2023.",
    "simcse": "Gao, Yao, Chen: SimCSE: Simple Contrastive Learning of Sentence Embeddings. EMNLP 2021.",
    "crop": "Izacard et al.: Unsupervised Dense Information Retrieval with Contrastive Learning. TMLR 2022.",
    "ict": "Lee, Chang, Toutanova: Latent Retrieval for Weakly Supervised Open Domain Question Answering. ACL 2019.",
    "passages": "Xu et al.: Contrastive Document Representation Learning with Graph Attention Networks. EMNLP 2021.",
    "info_nce+bregman": "Saggau et al.: Efficient Document Embeddings via Self-Contrastive Bregman Divergence "
    "Learning. Findings of ACL 2023.",
    "contrastive_tension": "Carlsson et al.: Semantic Re-tuning with Contrastive Tension. ICLR 2021.",
    "lora": "Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models. ICLR 2022.",
}
PAPERS |= {"passage_vs_rest": PAPERS["passages"], "momentum_contrast": PAPERS["crop"]}
HEAD = 'The masked-LM head, trained too: `AutoModelForMaskedLM.from_pretrained(NAME, variant="mlm")`. '
POOLED = {
    "cls": "the first of",
    "mean": "the mean over the tokens of",
    "max": "the largest over the tokens of",
    "weightedmean": "the mean over the tokens, weighted by their positions 1, 2 ..., of",
    "lasttoken": "that of the last token of",
}


def write_card(directory: str | Path, address: str | None = None, licence: str | None = None) -> str:
    """Write README.md of a checkpoint, and return its text.

    Args:
        address: user/name on the Hub, or a folder. Default: where its run pushed it, else the name of the folder.
        licence: of the weights, by its identifier on the Hub. Default: that of the card before, else of the start.

    Raises:
        ValueError: if this is no checkpoint of this project, or the licence is no identifier.
    """
    if licence is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence):
        raise ValueError(f"{licence!r} is no licence as the Hub names them: apache-2.0, cc-by-sa-4.0 ...")
    directory = Path(directory)
    if (directory / ADAPTATION_FILE).exists():
        return write_adapted_card(directory, address, licence)
    if "docsplit" not in read_json(directory / "config.json"):
        raise ValueError(f"{directory} has no config.json with the settings of DocSplitForContrastivePretraining.")
    config = read_config(directory)  # knows that DistilBERT's `dim` is its hidden_size
    check_types(config.docsplit, str(directory / "config.json"))
    settings = current_settings(config.docsplit)
    results, run = read_results(directory), RunRecord.read(directory)
    evaluations = read_evaluations(directory)
    start, options = (run.start or Start(), run.options) if run else (Start(), {})
    stated = Licence(licence) if licence else licence_of(directory / "README.md", start)
    address = address or (run.hub_model_id if run else None) or directory.resolve().name
    trust = trust_argument(directory)
    card = ModelCard.from_template(
        metadata(address, run, stated, model_index(options, results, evaluations), bool(trust)),
        template_path=str(TEMPLATE),
        name=inline(address.split("/")[-1]),
        address=python_literal(address),
        start=shlex.quote(one_line(address)),
        going_on=_going_on(settings, run),
        hidden_size=embedding_width(config),
        reads=_reads(config, settings),
        similarity=similarity_of(settings),
        trust=trust,
        encode="encode_document" if prompt_of(settings) else "encode",
        with_transformers=_with_transformers(config, settings, python_literal(address)),
        head=HEAD if (directory / HEAD_FILE).exists() else "",
        made_by=_made_by(config, run),
        data_table=_data_table(results, run),
        training_table=_training_table(results, run),
        plot=(directory / "training.png").exists(),
        options=_options(options, run.recipe if run else None),
        evaluation=evaluation_text(results, evaluations),
        limits=_limits(config, settings, run),
        licence=licence_text(stated, start),
        papers="\n".join(f"- {paper}" for paper in _papers(config, settings, options)),
    )
    text = str(card)
    write_text(directory / "README.md", text)
    return text


def add_results(encoders: Sequence[str], title: str, dataset: str, output_dir: Path) -> None:
    """Put the results of an evaluation into the cards of the encoders that this project made.

    The card in an encoder's folder is made again, and so is that on the Hub if the encoder came from there or was
    pushed there; other results stay, and so do the weights. All rows go into each card, so that baselines stand beside
    the encoder. Other people's encoders get no card.

    Args:
        encoders: names or folders, as the rows have them; the members of a group of seeds each get a card.
        title: of the section in the card.
        dataset: the data in words, of `docsplit.evaluation.results.data_names.describe_data`.
        output_dir: of the script, with its results.json. The evaluation has its name, and cards of models on the Hub
            are made in its folder `cards`.

    Raises:
        SystemExit: if a card did not reach the Hub, after all others are done.
    """
    task, rows = read_rows(read_json(output_dir / "results.json"))
    of_groups = {row["encoder"]: row["members"] for row in records(rows) if row.get("members")}
    encoders = list(dict.fromkeys(member for name in encoders for member in of_groups.get(name, [name])))
    rows, shown = without_paths(rows)
    evaluation = CardEvaluation(title, without_folders(dataset), task, rows, encoder="")
    on_hub: dict[str, list[str]] = {}  # addresses, and the encoders that have them
    for encoder in encoders:
        address: str | None = encoder
        if Path(encoder).exists():
            if _add_to_card(Path(encoder), None, replace(evaluation, encoder=shown.get(encoder, encoder)), output_dir):
                print(f"The results are in the card {Path(encoder) / 'README.md'}.")
            address = read_json(Path(encoder) / RUN_FILE).get("hub_model_id")
        if is_hub_name(address):
            on_hub.setdefault(str(address), []).append(encoder)
    problems = []
    for address, its_encoders in on_hub.items():
        directory = output_dir / "cards" / address.replace("/", "_")
        try:
            if len(its_encoders) > 1:
                raise ValueError(f"{' and '.join(its_encoders)} are all {address} on the Hub: name one of them.")
            download_card_files(address, directory)
            encoder = its_encoders[0]
            if _add_to_card(directory, address, replace(evaluation, encoder=shown.get(encoder, encoder)), output_dir):
                outdated = [f"{EVALUATIONS}/{output_dir.resolve().name}/*"]  # a curve, say, that is no longer there
                push_at_the_end(directory, address, f"Results: {' '.join(title.split())}", outdated)
                print(f"The results are in the card of {address} on the Hub.")
        except (ValueError, SystemExit) as error:
            problems.append(str(error))
    if problems:
        raise SystemExit("\n".join(problems))


def _add_to_card(directory: Path, address: str | None, evaluation: CardEvaluation, output_dir: Path) -> bool:
    """Add an evaluation to the card of a folder; False if the folder has no checkpoint of this project."""
    if "docsplit" not in read_json(directory / "config.json") and not (directory / ADAPTATION_FILE).exists():
        name = address or directory
        logger.info(f"{name} is no checkpoint of this project: its results stand in the cards of the others.")
        return False
    folder = directory / EVALUATIONS / output_dir.resolve().name
    earlier = read_json(folder / "results.json")
    if earlier and earlier["dataset"] != evaluation.dataset:
        logger.warning(
            f"The card of {address or directory} had results on {earlier['dataset']} from an --output_dir of the same "
            f"name, {folder.name}: these take their place. To keep both, give each a name of its own."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "results.json", json.dumps(evaluation.to_json(), indent=2) + "\n")
    (folder / "few_shot.png").unlink(missing_ok=True)
    if (output_dir / "few_shot.png").exists():
        shutil.copy(output_dir / "few_shot.png", folder)
    write_card(directory, address)
    return True


def _reads(config: Any, settings: Settings) -> str:
    """Say how much of a document an embedding covers."""
    return family_of(config).reads(config, f"up to {settings['max_seq_length']:,} tokens")


def _with_transformers(config: Any, settings: Settings, address: str) -> str:
    """Say how transformers alone gives an embedding."""
    if of_family := family_of(config).with_transformers(address):
        return of_family
    prompted = f" of {code(prompt_of(settings) + 'TEXT')}" if prompt_of(settings) else ""
    text = f"`AutoModel.from_pretrained({address})`; an embedding is {POOLED[settings['pooling']]} its last hidden\n"
    if dense_configs(settings):
        text += f"states{prompted}, turned by the layers in `2_Dense` and on ({describe_dense(settings)})"
    else:
        text += f"states{prompted}"
    text += f"{', at unit length' if normalizes(settings) else ''}. "
    if has_pooler(config):
        text += "Not its `pooler_output`: that was not trained here, and may be all zeros. "
    return text


def _made_by(config: Any, run: RunRecord | None) -> str:
    settings = current_settings(config.docsplit)
    start = _option(run, "model_name_or_path", "")
    learnt = "masked language modelling alone"
    if settings["contrastive_weight"]:
        objective, view = OBJECTIVES[settings["objective"]], _view(settings, run)
        aim = "to find the documents that answer a query" if view == QUERY_DOCUMENT else objective.aim(settings)
        details = [f"view {code(view)}", f"objective {code(settings['objective'])}", *objective.details(settings)]
        learnt = f"{aim}: {', '.join(details)}"
        if settings["mlm_weight"]:
            learnt += f", and masked language modelling with weight {settings['mlm_weight']:g}"
    family = family_of(config)
    reader = family.token_encoder(config)
    model = f"{code(reader.model_type)} of {reader.num_hidden_layers} layers{family.layers(config)}"
    dtype = one_line(str(config.dtype)).removeprefix("torch.")
    stored = "" if dtype in ("None", "float32") else f" Its weights are stored in {code(dtype)}."
    return f"This {model} started from {code(start) if start else 'random weights'} and learnt {learnt}.{stored}"


def _view(settings: Settings, run: RunRecord | None) -> str:
    """Return the view that was trained on; earlier versions recorded it as an option of the run alone."""
    return settings.get("view") or _option(run, "view", "docsplit")


def _going_on(settings: Settings, run: RunRecord | None) -> str:
    """Return the options that pretraining is gone on with: what the checkpoint does not say of itself."""
    view = _view(settings, run)
    words = f"--corpus {'YOUR_COLLECTION' if view == QUERY_DOCUMENT else 'YOUR_DOCUMENTS'}"
    if "view" not in settings and run is not None:
        words += f" --view {shlex.quote(one_line(view))}"
    if not settings["contrastive_weight"]:  # which has to be asked for
        words += " --contrastive_weight 0"
    return words


def _option(run: RunRecord | None, name: str, default: str) -> str:
    """Take an option of the run, as given or by default; it is not recorded where the run is not."""
    return run.options.get(name, default) if run else "not recorded"


def _data_table(results: JsonObject, run: RunRecord | None) -> str:
    if not results:
        return "Nothing about its training data is known: there is no all_results.json."
    rows: list[tuple[str, str]] = [("corpus", code(_option(run, "corpus", "python_docs")))]
    for key in ("documents_in_corpus", "documents_used"):
        rows += [(key.replace("_", " "), f"{results[key]:,}")] if results.get(key) is not None else []
    for key, value in results.items():
        if key == "documents_dropped" or (key.startswith("documents_dropped_") and value):
            rows.append((key.replace("_", " ").replace("dropped ", "dropped: ", 1), f"{value:,}"))
    for key, title in (
        ("documents_truncated_share", "documents with a truncated view"),
        ("tokens_truncated_share", "tokens lost by truncation"),
    ):
        if key in results:
            rows.append((title, f"{results[key]:.1%}"))
    return markdown_table(["Data", ""], rows)


def _training_table(results: JsonObject, run: RunRecord | None) -> str:
    rows: list[tuple[str, str]] = []
    if results:
        rows = [
            ("steps", f"{results['global_step']:,}"),
            ("tokens of the views", f"{results['train_tokens']:,}"),
            ("seconds", f"{results['train_runtime']:,.0f}"),
            ("tokens a second", f"{results['train_tokens_per_second']:,.0f}"),
            ("loss, mean", f"{results['train_loss']:.4f}"),
        ]
    if run:
        rows += [("hardware", inline(run.hardware)), ("processes", str(run.processes))]
        rows += [("commit of the code", code(run.commit or "unknown"))]
    table = markdown_table(["Training", ""], rows) if rows else ""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if version) if run else ""
    return f"{table}\n\nVersions: {inline(versions)}." if versions else table


def _options(options: dict[str, str], recipe: str | None) -> str:
    if not options:
        return "The options of the run were not recorded."
    text = f"Options, those of the recipe {code(recipe)} included; " if recipe else "Options; "
    rows = [(code(name), code(value)) for name, value in sorted(options.items())]
    return f"{text}the others have their defaults:\n\n{markdown_table(['option', 'value'], rows)}"


def _limits(config: Any, settings: Settings, run: RunRecord | None) -> str:
    unit = "passage" if family_of(config).rows == "passages" else "document"
    return (
        f"It reads the first {settings['max_seq_length']:,} tokens of a {unit} and nothing after them. Embeddings "
        f"follow what its documents (corpus: {code(_option(run, 'corpus', 'python_docs'))}) have in common and carry "
        "their biases; other languages and kinds of text were not measured unless a table above says so. Numbers of "
        "other runs, with other data or other baselines, are not comparable with these."
    )


def _papers(config: Any, settings: Settings, options: dict[str, str]) -> list[str]:
    with_lora = str(options.get("lora_r", "0")) != "0"
    view = settings.get("view", options.get("view"))
    papers = [PAPERS.get(str(name)) for name in ("docsplit", view, settings["objective"])]
    papers += [family_of(config).paper, PAPERS["lora"] if with_lora else None]
    return list(dict.fromkeys(paper for paper in papers if paper is not None))


def main() -> None:
    """Write the card of a folder again, with a licence and an address if they are given."""
    parser = CommandParser(__doc__, prog="python -m docsplit.release.model_card")
    add_plugin(parser)
    parser.add_argument("directory", type=Path, help="of a checkpoint of this project")
    parser.add_argument("--license", help="of the weights, as the Hub names it; later cards keep it")
    parser.add_argument(
        "--hub_model_id", help="what loads it: user/name (default: where its run pushed it, else the folder's)"
    )
    options = parser.parse_args()
    directory, address = options.directory, options.hub_model_id
    if address is not None and not is_hub_name(address):
        raise ValueError(f"--hub_model_id is {address!r}, expected user/name.")
    write_card(directory, address, options.license)
    print(f"Written: {directory / 'README.md'}")


command = as_command(main)
if __name__ == "__main__":
    command()
