"""The README.md of an encoder, made from the files of its folder alone: every number of the card is in one of them.

    python -m docsplit.release.model_card outputs/docsplit [--license apache-2.0] [--hub_model_id you/docsplit]

The files are config.json, the records of `docsplit.release.records`, and an earlier card for its licence. What others
wrote into them is shown as text: no name can bring links or HTML into a card.
"""

import json
import logging
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.data.views import QUERY_DOCUMENT
from docsplit.embedding.lexical_ridge import RidgeFacts
from docsplit.evaluation.results.data_names import without_folders
from docsplit.evaluation.results.markdown import (
    bold,
    bullets,
    code,
    image,
    inline,
    markdown_table,
    one_line,
    python_literal,
)
from docsplit.evaluation.results.plots import plot_training
from docsplit.evaluation.results.report import (
    Json,
    ResultsTable,
    head_name,
    names_of,
    notes_of,
    read_result_rows,
    records,
    short_names,
    table_of,
)
from docsplit.modeling.checked_files import HEAD_FILE, MODEL_FILE, has_pooler, read_config, read_file, read_modules
from docsplit.modeling.checkpoint import trust_argument
from docsplit.modeling.families.table import family_of
from docsplit.modeling.loading import document_prompt
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.start import check_types, current_settings
from docsplit.release.hub import download_card_files, push_at_the_end, release_files
from docsplit.release.records import (
    ADAPTATION_FILE,
    CLOSED_FORM,
    EVALUATIONS,
    RESULTS_FILE,
    RUN_FILE,
    Adaptation,
    Candidate,
    CardEvaluation,
    RunRecord,
    StartRecord,
    read_evaluations,
    read_front_matter,
    read_record,
    read_results,
    stated_licence,
)
from docsplit.runtime.command import as_command
from docsplit.runtime.files import write_text
from docsplit.runtime.options import CommandParser, add_plugin

logger = logging.getLogger(__name__)

CROP = "Izacard et al.: Unsupervised Dense Information Retrieval with Contrastive Learning. TMLR 2022."
GRAPH_PAPER = "Xu et al.: Contrastive Document Representation Learning with Graph Attention Networks. EMNLP 2021."
PAPERS = {  # of views and objectives
    "docsplit": "Wang, Izbicki: DocSplit: Simple Contrastive Pretraining for Large Document Embeddings. Findings of "
    "EMNLP 2023.",
    "simcse": "Gao, Yao, Chen: SimCSE: Simple Contrastive Learning of Sentence Embeddings. EMNLP 2021.",
    "crop": CROP,
    "momentum_contrast": CROP,
    "ict": "Lee, Chang, Toutanova: Latent Retrieval for Weakly Supervised Open Domain Question Answering. ACL 2019.",
    "passages": GRAPH_PAPER,
    "passage_vs_rest": GRAPH_PAPER,
    "info_nce+bregman": "Saggau et al.: Efficient Document Embeddings via Self-Contrastive Bregman Divergence "
    "Learning. Findings of ACL 2023.",
    "contrastive_tension": "Carlsson et al.: Semantic Re-tuning with Contrastive Tension. ICLR 2021.",
    "lora": "Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models. ICLR 2022.",
}
PROBE_MEASURES = {"5shot_accuracy": "5 labels a class", "accuracy": "all labels"}  # of a probe
WIDGET = {  # what the Hub's page compares, where it can run the encoder
    "source_sentence": "The storm kept all ships in the harbour.",
    "sentences": [
        "No boat could leave the port because of the weather.",
        "The lighthouse was built of granite, a century ago.",
        "Knead the dough, and let it rest for an hour.",
    ],
}


def write_card(directory: str | Path, address: str | None = None, licence: str | None = None) -> str:
    """Write README.md of an encoder that was pretrained or adapted here, and return its text.

    Whoever may read the folder may then read all files of the release.

    Args:
        address: user/name on the Hub, or a folder. Default: where its run pushed it, else the name of the folder.
        licence: of the weights, by its identifier on the Hub. Default: that of the card before, else of the start.

    Raises:
        ValueError: if this is no checkpoint of this project, or the licence is no identifier.
    """
    if licence is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence):
        raise ValueError(f"{licence!r} is no licence as the Hub names them: apache-2.0, cc-by-sa-4.0 ...")
    directory = Path(directory)
    adapted = Adaptation.read(directory)
    if adapted is None and "docsplit" not in read_record(directory / "config.json"):
        raise ValueError(f"{directory} has no config.json with the settings of DocSplitForContrastivePretraining.")
    run = None if adapted else RunRecord.read(directory)
    record = adapted or run
    start = record.start if record else StartRecord()
    address = address or (record and record.hub_model_id) or directory.resolve().name
    results, evaluations = read_results(directory), read_evaluations(directory)
    trust = trust_argument(directory)

    # The front matter
    stated = {"license": licence} if licence else _licence_of(directory / "README.md", start)
    if adapted is not None:
        corpus = None if adapted.documents_are_local else adapted.documents
        kept = [one.test for one in adapted.candidates if one.label == adapted.kept]
        probed = (adapted.probe or "", kept[0]) if kept else None
    else:
        corpus = run.options.get("corpus") if run and "corpus" not in run.local else None
        probed = None
        if "probe_after_accuracy" in results:
            after = {measure: results[f"probe_after_{measure}"] for measure in PROBE_MEASURES}
            probed = ((run.options if run else {}).get("probe_corpus", "probe"), after)
    data = ModelCardData(
        model_name=one_line(address),
        **_as_the_hub_takes_it(stated),
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["docsplit", "feature-extraction", "sentence-similarity"]
        + (["static-embeddings", "model2vec"] if adapted and adapted.kind in ("static", CLOSED_FORM) else []),
        language=start.language,
        base_model=_valid_names(start.base_model),
        datasets=[str(corpus).split(":")[0]] if is_hub_name(corpus) else None,
        eval_results=model_index(probed, evaluations) or None,
        widget=None if trust else [WIDGET],  # the Hub runs no code of a folder
    )

    # The text
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card_template.md")),
        name=inline(address.split("/")[-1]),
        address=python_literal(address),
        trust=trust,
        plot=(directory / "training.png").exists(),
        evaluation=evaluation_text(results, evaluations),
        carries_words=adapted is not None and adapted.kind != "plain",
        has_hashes=(directory / TRAINING_DOCUMENTS_FILE).exists(),
        licence=inline(stated.get("license_name") or stated.get("license") or ""),  # "other" has a name
        licence_of_start=stated.get("license") == start.license,
        **(_of_adaptation(adapted) if adapted else _of_pretraining(directory, run, results, address)),
    )
    write_text(directory / "README.md", str(card))
    for path in release_files(directory):  # safetensors writes files that their owner alone may read
        mode = path.stat().st_mode
        if (readable := mode | directory.stat().st_mode & 0o444) != mode:
            path.chmod(readable)
    return str(card)


def write_run(
    output_dir: Path, results: Json, log_history: list[dict[str, float]], run: RunRecord, loss_name: str
) -> None:
    """Write all_results.json, run.json, training.png and the card beside the checkpoint of a pretraining.

    A checkpoint that is the start, unchanged, keeps the start's card.
    """
    write_text(output_dir / RESULTS_FILE, json.dumps(results, indent=2) + "\n")
    run.write(output_dir)
    plot_training(log_history, results, output_dir / "training.png", loss_name)
    if not results["kept_start"]:
        write_card(output_dir)


# --- The front matter ---


def is_hub_name(name: object) -> bool:
    """Whether this has the form user/name, perhaps with a configuration."""
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name) is not None


def _licence_of(card: Path, start: StartRecord) -> dict[str, str]:
    """Find the licence that an earlier card of these weights states, by --license or by hand; else the start's."""
    front = read_front_matter(card)
    stated = stated_licence(front)
    if stated and start != StartRecord() and front.get("base_model") not in (None, start.base_model):
        logger.warning(f"{card} has the licence of weights from another start: the new card leaves it out.")
        stated = {}
    return stated or stated_licence(vars(start))


def _as_the_hub_takes_it(licence: Mapping[str, str]) -> dict[str, Any]:
    """Return a licence whose identifier has the form of the Hub's; another one becomes `other`, and its name."""
    name = licence.get("license")
    if name is None or re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        return dict(licence)
    return {"license_name": name, **licence, "license": "other"}


def _valid_names(base_model: str | list[str] | None) -> str | list[str] | None:
    """Return the names of models if the Hub takes them all; else None and a warning: a card may name anything."""
    try:
        for name in [base_model] if isinstance(base_model, str) else base_model or []:
            validate_repo_id(name)
    except HFValidationError:
        logger.warning(f"The base model {base_model!r} is no name on the Hub: the card names none.")
        return None
    return base_model


def model_index(probed: tuple[str, Mapping[str, float]] | None, evaluations: Sequence[CardEvaluation]) -> list[Any]:
    """Return an entry for each measured number of this encoder; of a group of seeds its own one, not their mean.

    Args:
        probed: the corpus of the probe of its run, and the accuracies.
    """
    entries = []
    if probed is not None:
        for measure, labels in PROBE_MEASURES.items():
            entries.append(_entry("text-classification", probed[0], f"Accuracy, {labels}", probed[1][measure]))
    for evaluation in evaluations:
        for row in records(evaluation.rows):
            members = row.get("members") or [row["encoder"]]
            if evaluation.encoder not in members:
                continue
            labels = "" if row["shots"] is None else f", {row['shots']} labels a class"
            for name in evaluation.task.columns:
                of_seeds = row.get(f"{name}_of_seeds") or [row[f"{name}_mean"]] * len(members)
                value, title = of_seeds[members.index(evaluation.encoder)], f"{name} ({head_name(row)}{labels})"
                entries.append(_entry(evaluation.task.name, evaluation.dataset, title, value))
    # Once each: it may have been measured alone and as one of a group.
    return list({(entry.dataset_name, entry.metric_name): entry for entry in entries}.values())


def _entry(task: str, dataset: str, title: str, value: float) -> EvalResult:
    dataset = one_line(dataset)
    name = dataset.partition(", ")[0]  # without what was done to it
    metric = re.match(r"\w+", title.lower())
    return EvalResult(
        task_type=task,
        dataset_type=re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-") or "unnamed",
        dataset_name=dataset or "unnamed",
        metric_type=metric[0] if metric else "accuracy",
        metric_name=title,
        metric_value=round(value, 4),
    )


# --- What was measured ---


def table_of_probe(results: Json) -> ResultsTable:
    """Return the accuracies of a pretraining's probe: before, after, TF-IDF; and C, chosen on validation documents."""
    body = []
    for name, prefix in (
        ("before pretraining", "probe_before"),
        ("after pretraining", "probe_after"),
        ("TF-IDF", "tfidf"),
    ):
        few, spread, every = (
            results[f"{prefix}_{key}"] for key in ("5shot_accuracy", "5shot_accuracy_std", "accuracy")
        )
        chosen = [f"{results.get(f'{prefix}_{key}') or 1:g}" for key in ("5shot_c", "c")]
        body.append((name, f"{few:.3f} ± {spread:.3f}", f"{every:.3f}", ", ".join(chosen)))
    header = ["logistic regression on", "5 labels a class", "all labels", "C of these"]
    return ResultsTable(header, body, title="The frozen encoder before and after")


def probe_table(results: Json) -> str:
    """Return a Markdown table of the probe, and what is to be known of it."""
    text = (
        f"{table_of_probe(results).markdown()}\n\nAccuracy over {results['probe_classes']} classes on "
        f"{results['probe_test_documents']:,} sealed test documents, which neither training nor selection reads; ± is "
        "the standard deviation over 10 draws of the labels."
    )
    if number := results.get("probe_validation_documents"):
        text += f" Selection, of C and of checkpoints if asked for, is on {number:,} validation documents."
    if "probe_seen_in_pretraining_share" in results:
        shares = (results[f"probe_{name}"] for name in ("seen_in_pretraining_share", "near_duplicate_share"))
        seen, near = ("unknown" if share is None else f"{100 * share:.1f} %" for share in shares)
        text += f" Test documents seen in pretraining: {seen}; with near-duplicates: {near}."
    return text


def candidates_table(candidates: Sequence[Candidate], kept: str) -> str:
    """Return the accuracies of all that adapting tried as Markdown, in percent; what was written is bold."""
    parts = ("Cross-validation", "Test")
    header = ["Accuracy", *(f"{part}, {labels}" for part in parts for labels in PROBE_MEASURES.values())]
    rows = []
    for one in candidates:
        measured = [accuracies[measure] for accuracies in (one.validation, one.test) for measure in PROBE_MEASURES]
        rows.append(
            [bold(one.label) if one.label == kept else one.label, *(f"{100 * value:.1f}" for value in measured)]
        )
    return markdown_table(header, rows)


def tables_of_results(results: Json, evaluations: Sequence[CardEvaluation]) -> list[ResultsTable]:
    """Return all that was measured, as data: each table with its full title, and names as they are."""
    tables = [table_of_probe(results)] if "probe_after_accuracy" in results else []
    for evaluation in evaluations:
        title = " ".join(f"{evaluation.title}: {evaluation.dataset}".split())
        tables.append(replace(table_of(evaluation.rows, evaluation.task), title=title))
    return tables


def evaluation_text(results: Json, evaluations: Sequence[CardEvaluation]) -> str:
    """Return all that was measured, as Markdown tables with their headings; "" for nothing."""
    parts = []
    if "probe_after_accuracy" in results:
        parts.append(f"### {table_of_probe(results).title}\n\n{probe_table(results)}")
    for evaluation in evaluations:
        rows, task = evaluation.rows, evaluation.task
        groups = [row for row in records(rows) if evaluation.encoder in row.get("members", [])]
        name = groups[0]["encoder"].partition("=")[0] if groups else evaluation.encoder
        is_mean = groups and len(groups[0]["members"]) > 1
        this = f"{inline(name)} is {'the mean over seeds of which this model is one' if is_mean else 'this model'}"
        tested = max((row.get(f"test_{task.items}") or 0 for row in records(rows)), default=0)
        note = (
            f"Measured on {inline(evaluation.dataset)}. "
            + (f"{tested:,} test {inline(task.items)}. " if tested else "")
            + "Percent; ± is the standard deviation over draws of the labels, or over trainings of the head. "
            + f"{this}; all rows are from one run."
        )
        title = inline(f"{evaluation.title}: {evaluation.dataset.partition(', ')[0]}")
        parts += [f"### {title}", table_of(rows, task).markdown(), note, bullets(notes_of(rows, task))]
        parts += [image("Over the number of labels", evaluation.plot)] if evaluation.plot else []
    return "\n\n".join(filter(None, parts))


# --- What was trained ---


def _of_pretraining(directory: Path, run: RunRecord | None, results: Json, address: str) -> dict[str, Any]:
    """Return what the template says of a pretraining; without a record of the run, that it is not known."""
    config = read_config(directory)  # knows that DistilBERT's `dim` is its hidden_size
    check_types(config.docsplit, str(directory / "config.json"))
    settings, family = current_settings(config.docsplit), family_of(config)
    # The modules after the first, by their files, for a card is made without weights
    paths = [module["path"] for module in read_modules(directory, {}) or []][1:]
    modules = {path: Pooling.load_config(str(directory), subfolder=path) for path in paths}
    first = Pooling.load_config(str(directory), config_filename=Transformer.config_file_name)
    length = f"{first['max_seq_length']:,}"
    reader, options = family.token_encoder(config), run.options if run else {}
    start = "random weights" if run else "weights that were not recorded"
    if name := options.get("model_name_or_path"):
        start = code(name)
    elif run and run.lexical:
        start = f"random weights, and token embeddings from a {run.lexical.sentence()},"
    corpus = code(options.get("corpus", "python_docs") if run else "not recorded")
    view = settings.get("view") or options.get("view", "docsplit" if run else "not recorded")
    learnt = "masked language modelling alone"
    going_on = f"--corpus {'YOUR_COLLECTION' if view == QUERY_DOCUMENT else 'YOUR_DOCUMENTS'}"
    if settings["contrastive_weight"]:
        objective = OBJECTIVES[settings["objective"]]
        aim = "to find the documents that answer a query" if view == QUERY_DOCUMENT else objective.aim(settings)
        details = [f"view {code(view)}", f"objective {code(settings['objective'])}", *objective.details(settings)]
        learnt = f"{aim}: {', '.join(details)}"
        if settings["mlm_weight"]:
            learnt += f", and masked language modelling with weight {settings['mlm_weight']:g}"
    else:
        going_on += " --contrastive_weight 0"  # which has to be asked for
    with_lora = ["lora"] if options.get("lora_r", "0") != "0" else []
    papers = [PAPERS.get(name) for name in ("docsplit", view, settings["objective"], *with_lora)]
    return {
        "kind": "pretrained",
        "reads": family.reads(config, f"up to {length} tokens"),
        "width": [config.hidden_size, *(own["out_features"] for own in modules.values() if "out_features" in own)][-1],
        "model": f"{code(reader.model_type)} of {reader.num_hidden_layers} layers{family.layers(config)}",
        "start": start,
        "learnt": learnt,
        "dtype": one_line(str(config.dtype or "float32")).removeprefix("torch."),
        "with_transformers": _with_transformers(config, directory, modules, python_literal(address)),
        "has_head": (directory / HEAD_FILE).exists(),
        "going_on": f"{shlex.quote(one_line(address))} {going_on}",
        "training": _training_table(results, run, corpus),
        "recipe": code(run.recipe) if run and run.recipe else "",
        "options": [f"{one_line(name)}: {one_line(value)}" for name, value in sorted(options.items())],
        "changes": [one_line(change) for change in run.changes] if run else [],
        "longest": length,
        "unit": "passage" if family.rows == "passages" else "document",
        "documents": f"corpus: {corpus}",
        "papers": [paper for paper in dict.fromkeys([*papers, family.paper]) if paper],
    }


def _with_transformers(config: Any, directory: Path, modules: Mapping[str, Json], address: str) -> str:
    """Say how transformers alone gives an embedding."""
    if of_family := family_of(config).with_transformers(address):
        return of_family
    after, model = [*modules][1:], read_file(directory, MODEL_FILE, {}) or {}
    modes = next(iter(modules.values()), {}).get("pooling_mode", "mean")
    shown = code(modes if isinstance(modes, str) else "+".join(modes))
    text = f"`AutoModel.from_pretrained({address})` and {shown} pooling of its last hidden states"
    if prompt := document_prompt(model.get("prompts") or {}, model.get("default_prompt_name")):
        text += f" of {code(prompt + 'TEXT')}"
    if layers := [code(folder) for folder in after if not folder.endswith("_Normalize")]:
        text += f", changed by {' and '.join(layers)}"
    text += ". " if len(layers) == len(after) else ", at unit length. "
    return text + ("Not its `pooler_output`: that was not trained here, and may be all zeros. " * has_pooler(config))


def _training_table(results: Json, run: RunRecord | None, corpus: str) -> str:
    """Return the data and the training of a run as a table, as far as they are known; "" where nothing is."""
    if not results:
        return ""
    rows = [("corpus", corpus)]
    dropped = [name for name, value in results.items() if name.startswith("documents_dropped_") and value]
    for name, title, form in (
        ("documents_in_corpus", "documents in corpus", ","),
        ("documents_used", "documents used", ","),
        ("documents_dropped", "documents dropped", ","),
        *((name, f"documents dropped: {name[18:].replace('_', ' ')}", ",") for name in dropped),
        ("documents_truncated_share", "documents with a truncated view", ".1%"),
        ("tokens_truncated_share", "tokens lost by truncation", ".1%"),
        ("global_step", "steps", ","),
        ("train_tokens", "tokens of the views", ","),
        ("train_runtime", "seconds", ",.0f"),
        ("train_tokens_per_second", "tokens a second", ",.0f"),
        ("train_loss", "loss, mean", ".4f"),
    ):
        if results.get(name) is not None:
            rows.append((title, f"{results[name]:{form}}"))
    if run is None:
        return markdown_table(["Training", ""], rows)
    rows += [("hardware", inline(run.hardware)), ("processes", str(run.processes))]
    rows += [("commit of the code", code(run.commit or "unknown"))]
    installed = ", ".join(f"{name} {version}" for name, version in run.versions.items() if version)
    return f"{markdown_table(['Training', ''], rows)}\n\nVersions: {inline(installed)}."


def _of_adaptation(record: Adaptation) -> dict[str, Any]:
    """Return what the template says of an encoder that was adapted to documents."""
    encoder, documents = str(code(record.encoder)), code(record.documents)
    if record.recipe and record.kept != "start":
        encoder += f", trained on {documents} by the recipe {code(record.recipe)},"
    return {
        "kind": record.kind,
        "kept": record.kept,
        "encoder": encoder,
        "documents": documents,
        "weight": "" if record.weight in (None, 1) else f", with weight {record.weight:g}",
        "words": _words_table(record),
        "candidates": candidates_table(record.candidates, record.kept) if record.candidates else "",
        "probe": code(record.probe),
    }


def _words_table(record: Adaptation) -> str:
    """Return what words were fitted on, and how well they explain the encoder's vectors; "" where there are none."""
    facts = record.facts or record.of_halves
    if facts is None:
        return ""
    rows = [
        ("fitted on", code(record.documents)),
        ("documents", f"{facts.documents:,}"),
        ("documents left out: empty", f"{facts.empty:,}"),
        ("documents left out: copies", f"{facts.duplicates:,}"),
    ]
    if isinstance(facts, RidgeFacts):
        rows += [
            ("documents that share no token with another", f"{facts.without_pieces:,}"),
            ("a token that a document has c times counts", f"{'1 + ln c' if facts.sublinear else 'c'} times"),
            ("neighbours that targets are averaged with", str(facts.neighbours)),
            ("ridge penalty", f"{facts.penalty:g}"),
            ("variance of the encoder's vectors explained, leave-one-out", f"{facts.share_explained:.1%}"),
        ]
    else:
        rows += [("documents that are too short to halve", f"{facts.too_short:,}")]
    rows += [
        ("tokens with a vector", f"{facts.pieces:,}"),
        *((f"seconds: {step}", f"{seconds:,.1f}") for step, seconds in record.seconds.items()),
        ("hardware", inline(record.hardware)),
        ("commit of the code", code(record.commit or "unknown")),
    ]
    return markdown_table(["Words", ""], rows)


# --- Results that come later ---


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
    task, rows = read_result_rows(read_record(output_dir / "results.json"))
    of_groups = {row["encoder"]: row["members"] for row in records(rows) if row.get("members")}
    encoders = list(dict.fromkeys(member for name in encoders for member in of_groups.get(name, [name])))
    rows, shown = without_paths(rows)
    contents = {"title": title, "dataset": without_folders(dataset), "task": task.to_json(), "rows": records(rows)}
    on_hub: dict[str, list[str]] = {}  # addresses, and the encoders that have them
    for encoder in encoders:
        address: str | None = encoder
        if Path(encoder).exists():
            if _add_to_card(Path(encoder), None, contents | {"encoder": shown.get(encoder, encoder)}, output_dir):
                print(f"The results are in the card {Path(encoder) / 'README.md'}.")
            address = read_record(Path(encoder) / RUN_FILE).get("hub_model_id")
        if is_hub_name(address):
            on_hub.setdefault(str(address), []).append(encoder)
    problems = []
    for address, (encoder, *others) in on_hub.items():
        directory = output_dir / "cards" / address.replace("/", "_")
        try:
            if others:
                raise ValueError(f"{' and '.join([encoder, *others])} are all {address} on the Hub: name one of them.")
            download_card_files(address, directory)
            if _add_to_card(directory, address, contents | {"encoder": shown.get(encoder, encoder)}, output_dir):
                outdated = [f"{EVALUATIONS}/{output_dir.resolve().name}/*"]  # a curve, say, that is no longer there
                push_at_the_end(directory, address, f"Results: {' '.join(title.split())}", outdated)
                print(f"The results are in the card of {address} on the Hub.")
        except (ValueError, SystemExit) as error:
            problems.append(str(error))
    if problems:
        raise SystemExit("\n".join(problems))


def without_paths(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return rows as a card may have them, local encoders by the names of their folders alone; and these names."""
    listed = records(rows)
    members = [member for row in listed for member in row.get("members") or [row["encoder"]]]
    shown = short_names((name for name in dict.fromkeys(members) if Path(name).exists()), longest=0)
    groups = {name: label for name, label in names_of(rows).items() if name not in members}
    for row in listed:
        row["encoder"] = (groups | shown).get(row["encoder"], row["encoder"])
        row["members"] = [shown.get(member, member) for member in row.get("members", [])]
    return pd.DataFrame(listed, dtype=object), shown


def _add_to_card(directory: Path, address: str | None, contents: Json, output_dir: Path) -> bool:
    """Add an evaluation to the card of a folder; False if the folder has no encoder of this project."""
    name = address or directory
    if "docsplit" not in read_record(directory / "config.json") and not (directory / ADAPTATION_FILE).exists():
        logger.info(f"{name} is no checkpoint of this project: its results stand in the cards of the others.")
        return False
    folder = directory / EVALUATIONS / output_dir.resolve().name
    earlier = read_record(folder / "results.json")
    if earlier and earlier["dataset"] != contents["dataset"]:
        logger.warning(
            f"The card of {name} had results on {earlier['dataset']} from an --output_dir of the same name, "
            f"{folder.name}: these take their place. To keep both, give each a name of its own."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "results.json", json.dumps(contents, indent=2) + "\n")
    (folder / "few_shot.png").unlink(missing_ok=True)
    if (output_dir / "few_shot.png").exists():
        shutil.copy(output_dir / "few_shot.png", folder)
    write_card(directory, address)
    return True


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
    if options.hub_model_id is not None and not is_hub_name(options.hub_model_id):
        raise ValueError(f"--hub_model_id is {options.hub_model_id!r}, expected user/name.")
    write_card(options.directory, options.hub_model_id, options.license)
    print(f"Written: {options.directory / 'README.md'}")


command = as_command(main)
if __name__ == "__main__":
    command()
