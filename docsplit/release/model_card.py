"""The README.md of a checkpoint, made from the files of its folder and nothing else: a number that is in none of them
cannot get into the card.

    python -m docsplit.release.model_card outputs/docsplit [--license apache-2.0]

Read are config.json, `all_results.json` and `run.json` of the pretraining, `evaluations/*/results.json`, which
`run_probe_classification.py` and `run_aan_retrieval.py` put there with --push_results, and of an earlier card the
licence.
"""

import argparse
import json
import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import AutoConfig

from docsplit.evaluation.results.data_names import without_folders
from docsplit.evaluation.results.tables import markdown_table
from docsplit.modeling.families.graph import is_graph
from docsplit.modeling.families.longformer import needs_remote_code
from docsplit.modeling.sentence_transformers_files import prompt_of, similarity_of
from docsplit.modeling.settings import current_settings, has_pooler, normalizes
from docsplit.modeling.starts import HEAD_FILE
from docsplit.release.card_results import (
    EVALUATIONS,
    RESULTS_FILE,
    CardEvaluation,
    code,
    evaluation_text,
    model_index,
    plain,
    read_evaluations,
    read_json,
    rows_of_file,
    without_paths,
)
from docsplit.release.front_matter import is_hub_name, licence_of, licence_text, metadata
from docsplit.release.hub import download_card_files, push_at_the_end
from docsplit.release.run_record import RUN_FILE, Licence, RunRecord, Start
from docsplit.runtime.files import write_text

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).parent / "card_template.md"
PAPERS = {
    "docsplit": "DocSplit: Simple Contrastive Pretraining for Large Document Embeddings. Anonymous EMNLP submission.",
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
POOLED = {"cls": "the first of", "mean": "the mean over the tokens of", "max": "the largest over the tokens of"}


def write_card(directory: str | Path, address: str | None = None, licence: str | None = None) -> str:
    """Write README.md of a checkpoint, and return its text.

    Args:
        address: user/name on the Hub. Default: where its run pushed it, else the name of the folder.
        licence: of the weights, by its identifier on the Hub. Default: what the card says that is there, if any, else
            that of the start.

    Raises:
        ValueError: if this is no checkpoint of this project, or the licence is no identifier.
    """
    if licence is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence):
        raise ValueError(f"{licence!r} is no licence as the Hub names them: apache-2.0, cc-by-sa-4.0 ...")
    directory = Path(directory)
    if "docsplit" not in read_json(directory / "config.json"):
        raise ValueError(f"{directory} has no config.json with the settings of DocSplitForContrastivePretraining.")
    config = AutoConfig.from_pretrained(directory)  # knows that DistilBERT's `dim` is its hidden_size
    settings = current_settings(config.docsplit)
    results, run = read_json(directory / RESULTS_FILE), RunRecord.read(directory)
    evaluations = read_evaluations(directory)
    start, options = (run.start or Start(), run.options) if run else (Start(), {})
    stated = Licence(licence) if licence else licence_of(directory / "README.md", start)
    address = address or (run.hub_model_id if run else None) or directory.resolve().name
    card = ModelCard.from_template(
        metadata(address, run, stated, model_index(options, results, evaluations)),
        template_path=str(TEMPLATE),
        name=plain(address.split("/")[-1]),
        address=json.dumps(address),
        hidden_size=config.hidden_size,
        reads=_reads(config, settings),
        similarity=similarity_of(settings),
        trust=", trust_remote_code=True" if needs_remote_code(config) else "",
        encode="encode_document" if prompt_of(settings) else "encode",
        with_transformers=_with_transformers(config, settings, json.dumps(address)),
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
    """Put the results of a probe or retrieval script into the cards of the encoders that this project made.

    In the folder of each, and on the Hub if it came from there or was pushed there: what else is in that card stays,
    and so do the weights. All rows go along, so that baselines of the same run stand beside it; other people's
    encoders get no card.

    Args:
        encoders: names or folders, as the rows have them; the members of a group of seeds each get a card.
        title: of the section in the card.
        dataset: what was measured on, as `docsplit.evaluation.results.data_names.describe_data` says it.
        output_dir: of the script, with its results.json. Its name is that of the evaluation, and cards of models that
            are on the Hub are made in its folder `cards`.

    Raises:
        SystemExit: if a card did not reach the Hub, after all others are done.
    """
    task, rows = rows_of_file(read_json(output_dir / "results.json"))
    of_groups = {row.encoder: row.members for row in rows if row.members}
    encoders = list(dict.fromkeys(member for name in encoders for member in of_groups.get(name, [name])))
    rows, shown = without_paths(rows)
    evaluation = CardEvaluation(title, without_folders(dataset), task, rows, encoder="")
    on_hub: dict[str, list[str]] = {}  # addresses, and the encoders that have them
    for encoder in encoders:
        address: str | None = encoder
        if Path(encoder).exists():
            _add_to_card(Path(encoder), None, replace(evaluation, encoder=shown.get(encoder, encoder)), output_dir)
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
        except (ValueError, SystemExit) as error:
            problems.append(str(error))
    if problems:
        raise SystemExit("\n".join(problems))


def _add_to_card(directory: Path, address: str | None, evaluation: CardEvaluation, output_dir: Path) -> bool:
    """Whether there is a card to add it to."""
    if "docsplit" not in read_json(directory / "config.json"):
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


def _reads(config: Any, settings: dict[str, Any]) -> str:
    """How much of a document the embedding is of."""
    tokens = f"up to {settings['max_seq_length']:,} tokens"
    if not is_graph(config):
        return f"a document of {tokens}"
    return f"a document of any length, read in passages of about {config.passage_words} words ({tokens} each)"


def _with_transformers(config: Any, settings: dict[str, Any], address: str) -> str:
    """How transformers alone gives an embedding."""
    if is_graph(config):
        return (
            f"`AutoModel.from_pretrained({address}, trust_remote_code=True)`: its `forward` takes the passages of "
            "documents and gives their `embeddings`, and attention weights with `output_attentions=True`. "
        )
    prompted = f" of {code(prompt_of(settings) + 'TEXT')}" if prompt_of(settings) else ""
    said = f"`AutoModel.from_pretrained({address})`; an embedding is {POOLED[settings['pooling']]} its last hidden\n"
    said += f"states{prompted}{', at unit length' if normalizes(settings) else ''}. "
    if has_pooler(config):
        said += "Not its `pooler_output`: that was not trained here, and may be all zeros. "
    return said


def _made_by(config: Any, run: RunRecord | None) -> str:
    settings = current_settings(config.docsplit)
    start = _option(run, "model_name_or_path", "")
    learnt = "masked language modelling alone"
    if settings["contrastive_weight"]:
        learnt = f"to tell documents apart: view {code(_option(run, 'view', 'docsplit'))}, objective "
        learnt += code(settings["objective"])
        if "similarity" in settings:
            learnt += f", {settings['similarity']} similarity, temperature {settings['contrastive_temperature']:g}"
        if "momentum_queue_size" in settings:
            learnt += f", a queue of {settings['momentum_queue_size']:,} negatives"
        if settings["mlm_weight"]:
            learnt += f", and masked language modelling with weight {settings['mlm_weight']:g}"
    reader = config.passage_encoder if is_graph(config) else config
    model = f"{code(reader.model_type)} of {reader.num_hidden_layers} layers"
    if is_graph(config):
        of_graph = f"{config.graph_layers} of graph attention over its passages ({code(config.graph_kind)} graph)"
        model += f", with {of_graph}," if config.graph_layers else ", whose passages' vectors are averaged,"
    return f"This {model} started from {code(start) if start else 'random weights'} and learnt {learnt}."


def _option(run: RunRecord | None, name: str, default: str) -> str:
    """As the run had it: given, or the script's default; without a record of the run nobody knows."""
    return run.options.get(name, default) if run else "not recorded"


def _data_table(results: dict[str, Any], run: RunRecord | None) -> str:
    if not results:
        return "Nothing about its training data is known: there is no all_results.json."
    rows = [("corpus", code(_option(run, "corpus", "python_docs")))]
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


def _training_table(results: dict[str, Any], run: RunRecord | None) -> str:
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
        rows += [("hardware", plain(run.hardware)), ("processes", str(run.processes))]
        rows += [("commit of the code", code(run.commit or "unknown"))]
    table = markdown_table(["Training", ""], rows) if rows else ""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if version) if run else ""
    return f"{table}\n\nVersions: {plain(versions)}." if versions else table


def _options(options: dict[str, str], recipe: str | None) -> str:
    if not options:
        return "The options of the run were not recorded."
    text = f"Options, those of the recipe {code(recipe)} included; " if recipe else "Options; "
    rows = [(code(name), code(value)) for name, value in sorted(options.items())]
    return f"{text}the others have their defaults:\n\n{markdown_table(['option', 'value'], rows)}"


def _limits(config: Any, settings: dict[str, Any], run: RunRecord | None) -> str:
    what = "passage" if is_graph(config) else "document"
    return (
        f"It reads the first {settings['max_seq_length']:,} tokens of a {what} and nothing after them. Embeddings "
        f"follow what its documents (corpus: {code(_option(run, 'corpus', 'python_docs'))}) have in common and carry "
        "their biases; other languages and kinds of text were not measured unless a table above says so. Numbers of "
        "other runs, with other data or other baselines, are not comparable with these."
    )


def _papers(config: Any, settings: dict[str, Any], options: dict[str, str]) -> list[str]:
    names = ["docsplit", options.get("view"), settings["objective"], "passages" if is_graph(config) else None]
    if str(options.get("lora_r", "0")) != "0":
        names.append("lora")
    return list(dict.fromkeys(PAPERS[name] for name in names if name in PAPERS))


def main() -> None:
    """Write the card of a folder again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="of a checkpoint of this project")
    parser.add_argument("--license", help="of the weights, as the Hub names it; later cards keep it")
    options = parser.parse_args()
    directory = options.directory
    write_card(directory, licence=options.license)
    print(f"Written: {directory / 'README.md'}")


if __name__ == "__main__":
    main()
