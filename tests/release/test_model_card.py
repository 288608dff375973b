"""A card says what the files of its folder say and nothing else; the Hub takes it, and it names no local path."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import yaml
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer

from docsplit import AdaptOptions, adapt
from docsplit.evaluation.results.report import rows
from docsplit.evaluation.results.result import CLASSIFICATION, LINKS
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.release import model_card
from docsplit.release.model_card import (
    PAPERS,
    add_results,
    evaluation_text,
    is_hub_name,
    model_index,
    probe_table,
    tables_of_results,
    write_card,
)
from docsplit.release.records import CardEvaluation, read_evaluations
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import make_corpus, save_checkpoint, tiny_config
from tests.evaluation.results.examples import make_group, make_result
from tests.processes import ROOT
from tests.release.hostile_cards import write_files
from tests.release.hub_rules import front_matter, problems
from tests.release.test_records import ADAPTED, CANDIDATES

RESULTS = {
    "documents_in_corpus": 80000, "documents_used": 71234, "documents_dropped": 6, "documents_dropped_empty": 5,
    "documents_truncated_share": 0.2345, "tokens_truncated_share": 0.1357, "global_step": 4321,
    "train_tokens": 98765432, "train_runtime": 777.4, "train_tokens_per_second": 127046.0, "train_loss": 1.23456,
}  # fmt: skip
PROBE = {
    "probe_classes": 40, "probe_test_documents": 1999, "probe_before_5shot_accuracy": 0.101,
    "probe_before_5shot_accuracy_std": 0.011, "probe_before_accuracy": 0.201, "probe_after_5shot_accuracy": 0.501,
    "probe_after_5shot_accuracy_std": 0.012, "probe_after_accuracy": 0.701, "tfidf_5shot_accuracy": 0.301,
    "tfidf_5shot_accuracy_std": 0.013, "tfidf_accuracy": 0.801, "tfidf_5shot_c": 10.0, "tfidf_c": 0.5,
    "probe_validation_documents": 300, "probe_seen_in_pretraining_share": 0.125, "probe_near_duplicate_share": None,
}  # fmt: skip
RUN = {
    "recipe": "small.yaml", "options": {"corpus": "wikimedia/wikipedia:20231101.en", "view": "crop",
    "model_name_or_path": "google/bert_uncased_L-2_H-128_A-2", "lora_r": "8"}, "hardware": "Some CPU, 2 cores, 24 GB",
    "processes": 1, "versions": {"torch": "2.13.0", "spacy": None}, "commit": "0123abc", "hub_model_id": None,
    "start": {"base_model": "google/bert_uncased_L-2_H-128_A-2", "language": "en"},
}  # fmt: skip
STATIC = replace(ADAPTED, kind="static", kept="static", weight=None, facts=replace(ADAPTED.facts, sublinear=False))
PLAIN = replace(ADAPTED, kind="plain", kept="start", weight=None)
PROBED = replace(ADAPTED, weight=0.5, kept="words, weight 0.5", probe="labelled.jsonl", candidates=CANDIDATES)
SHIPPED = sorted((ROOT / "model_cards").glob("*/README.md"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory, wordpiece):
    return save_checkpoint(wordpiece, tmp_path_factory.mktemp("saved") / "encoder", 128)


@pytest.fixture
def directory(saved, tmp_path):
    """A checkpoint, with these files of JSON in it."""
    folder = tmp_path / "encoder"
    shutil.copytree(saved, folder)

    def fill(**files):
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return folder

    return fill


def row(encoder, value, names=("accuracy", "macro_f1"), **more):
    means = {f"{name}_{part}": number for name in names for part, number in (("mean", value), ("std", 0.01))}
    return {"encoder": encoder, "head": "mlp", "shots": None, "features": "raw", "runs": 3} | means | more


def write_rows(folder, listed, task=CLASSIFICATION):
    write_files(folder, {"results.json": {"task": task.to_json(), "rows": listed}})
    return folder


# --- Of a pretraining ---


def test_numbers_of_the_files_are_in_the_card(directory):
    text = write_card(directory(all_results=RESULTS | PROBE, run=RUN))
    table = dict(re.findall(r"^\| (.+?) +\| +(.+?) \|$", text, re.MULTILINE))
    assert {"documents in corpus": "80,000", "documents used": "71,234", "documents dropped: empty": "5"}.items() <= (
        table.items()
    )
    assert {"tokens lost by truncation": "13.6%", "seconds": "777", "loss, mean": "1.2346"}.items() <= table.items()
    for shown in ("23.4%", "4,321", "98,765,432", "127,046", "0.501 ± 0.012", "0.801", "10, 0.5", "torch 2.13.0.",
                  "Some CPU, 2 cores, 24 GB", "`0123abc`", "\n    lora_r: 8\n", "recipe `small.yaml`",
                  "started from `google/bert_uncased_L-2_H-128_A-2`", "view `crop`", "Izacard", "LoRA",
                  "DocSplit: Simple Contrastive Pretraining"):  # fmt: skip
        assert shown in text, shown
    data = ModelCard(text).data
    assert (data.base_model, data.language) == ("google/bert_uncased_L-2_H-128_A-2", "en")
    assert data.datasets == ["wikimedia/wikipedia"]
    assert {result.metric_name: result.metric_value for result in data.eval_results} == {
        "Accuracy, 5 labels a class": 0.501, "Accuracy, all labels": 0.701,
    }  # fmt: skip
    assert problems(text) == []


def test_without_files_the_card_says_that_nothing_is_known(directory):
    text = write_card(directory())
    for shown in ("Nothing was measured.", "Nothing about its training data is known", "options of the run were not",
                  "weights that were not recorded", "No licence was stated"):  # fmt: skip
        assert shown in text
    assert set(re.findall(r"\d[\d.,]*\d|\d", text.split("## Training")[1].split("## Papers")[0])) == {"128", "2.0"}
    assert problems(text) == []
    with pytest.raises(ValueError, match=r"has no config.json with the settings"):
        write_card(directory().parent)


@pytest.mark.parametrize(
    ("settings", "view", "expected"),
    [
        ({}, "docsplit", "to tell documents apart: view `docsplit`, objective `info_nce`, cosine similarity, "
         "temperature 0.05, and masked language modelling with weight 0.1."),
        ({"mlm_weight": 0.0}, "query_document", "to find the documents that answer a query: view `query_document`"),
        ({"objective": "momentum_contrast", "momentum_queue_size": 64, "mlm_weight": 0.0}, "crop",
         "a queue of 64 negatives"),
        ({"objective": "neighbour_distillation", "mlm_weight": 0.0}, "simcse", "to map a document to the vector that "
         "its start gave it, averaged with those of its 20 nearest neighbours in the corpus: view `simcse`, objective "
         "`neighbour_distillation`."),
        ({"objective": "info_nce+bregman", "bregman_weight": 0.5, "bregman_sigma": 1.5, "bregman_subnetworks": 3,
          "bregman_temperature": 0.2}, "simcse", "Bregman loss (lambda 0.5, sigma 1.5, g 3, temperature 0.2)"),
        ({"contrastive_weight": 0.0, "mlm_weight": 1.0}, "docsplit", "learnt masked language modelling alone."),
    ],
)  # fmt: skip
def test_a_card_says_what_was_learnt_and_how_to_go_on(settings, view, expected, wordpiece, tmp_path):
    DocSplitForContrastivePretraining.from_config(tiny_config(wordpiece), wordpiece, **settings).save_pretrained(
        tmp_path
    )
    (tmp_path / "run.json").write_text(json.dumps(RUN | {"options": {"view": view}}))
    text = write_card(tmp_path, "someone/e")
    assert expected in text
    (command,) = re.findall(r"^    accelerate launch \S+ --model_name_or_path someone/e --corpus (.*)$", text, re.M)
    assert command.split()[0] == ("YOUR_COLLECTION" if view == "query_document" else "YOUR_DOCUMENTS")
    assert ("--contrastive_weight 0" in command) == (settings.get("contrastive_weight") == 0)
    cited = text.split("## Papers")[1]
    assert ("SimCSE" in cited, "Bregman" in cited) == (view == "simcse", "bregman_weight" in settings)


def test_the_card_of_a_graph_document_model(tmp_path, wordpiece):
    config = GraphDocumentConfig(tiny_config(wordpiece), graph_hidden_size=16, graph_kind="star", passage_words=60)
    settings = {"similarity": "dot", "max_seq_length": 48}
    DocSplitForContrastivePretraining.from_config(config, wordpiece, **settings).save_pretrained(tmp_path)
    text = " ".join(write_card(tmp_path, "someone/graph").split())
    for shown in ("It turns a document of any length, read in passages of about 60 words (up to 48 tokens each), into "
                  "a vector of 16 numbers.", "of 2 layers, with 2 of graph attention over its passages (`star` graph)",
                  'SentenceTransformer("someone/graph", trust_remote_code=True)', "the first 48 tokens of a passage",
                  "Graph Attention Networks"):  # fmt: skip
        assert shown in text
    assert "last hidden" not in text


# --- Of an adaptation ---


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (ADAPTED, "`user/encoder` and, added to its vectors, the words of whole documents: a vector for each token"),
        (PROBED, "added to its vectors, with weight 0.5, the words of"),
        (replace(ADAPTED, recipe="adapt", kept="trained + words"),
         "`user/encoder`, trained on `notes.jsonl` by the recipe `adapt`, and, added to its vectors, the words"),
        (STATIC, "A static encoder: a vector for each token, fitted to what `user/encoder` says of `notes.jsonl`."),
        (PLAIN, "`user/encoder`, unchanged: words of `notes.jsonl` were tried, and did not make it better."),
        (replace(PLAIN, facts=None), "There are none: words explain nothing of the encoder's vectors"),
    ],
)  # fmt: skip
def test_the_card_of_an_adaptation(record, says, tmp_path):
    record.write(tmp_path)
    text = write_card(tmp_path, "user/mine")
    assert says in text
    assert problems(text) == []
    assert ("Token vectors carry the vocabulary" in text) == (record.kind != "plain")
    assert ("These words were tried, and are not in the files." in text) == (
        record.kind == "plain" and bool(record.facts)
    )
    if record.facts:
        table = dict(re.findall(r"^\| (.+?) +\| +(.+?) \|$", text, re.MULTILINE))
        expected = {"fitted on": "`notes.jsonl`", "documents": "1,234", "documents left out: empty": "3",
                    "documents that share no token with another": "2", "tokens with a vector": "5,678",
                    "ridge penalty": "0.3", "seconds: embed": "12.3",
                    "a token that a document has c times counts": f"{'' if record == STATIC else '1 + ln '}c times",
                    "variance of the encoder's vectors explained, leave-one-out": "45.6%"}  # fmt: skip
        assert expected.items() <= table.items()
    data = ModelCard(text).data
    assert (data.base_model, data.license, data.language, data.datasets) == ("user/encoder", "mit", ["en", "de"], None)
    assert ("model2vec" in data.tags) == (record.kind == "static")
    assert [result.metric_value for result in data.eval_results or []] == [0.4321, 0.8765] * (record is PROBED)
    if record is PROBED:
        (tried,) = re.findall(r"(?:^\|.*\n){6}", text.partition("### What was tried")[2], re.MULTILINE)
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tried.splitlines()[2:]]
        assert [name for name, *_ in cells] == ["start", "words", "**words, weight 0.5**", "static"]
        assert cells[0][1:] == ["50.0", "25.0", "43.2", "87.6"]
    (tmp_path / "training_documents.safetensors").write_bytes(b"")
    replace(record, documents="user/data", documents_are_local=False).write(tmp_path)
    text = write_card(tmp_path)
    assert "has hashes of the documents" in text
    assert ModelCard(text).data.datasets == ["user/data"]


@pytest.mark.parametrize("kind", ["words", "static", "closed form"])
def test_what_the_card_of_an_adapted_folder_says_to_run_runs(kind, reads_little, tmp_path, monkeypatch):
    documents = tmp_path / "documents.txt"
    documents.write_text("\n".join(one["text"] for one in make_corpus(120, seed=5)))
    folder = tmp_path / "adapted"
    if kind == "closed form":
        adapt("none", documents, folder)
    else:
        adapt(str(reads_little), documents, folder, AdaptOptions(static=kind == "static", dtype="float32"))
    for name in ("README.md", "adapt.json"):
        assert str(tmp_path) not in (folder / name).read_text()
        assert str(reads_little.parent) not in (folder / name).read_text()
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in folder.rglob("*"))  # others may read all of it
    text = (folder / "README.md").read_text()
    assert problems(text) == []
    assert ("widget" in front_matter(text)) == (kind != "words")  # words are code, which the Hub does not run
    monkeypatch.chdir(tmp_path)
    expected = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu").encode(["A long document ..."])
    for snippet in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        if "model2vec" not in snippet or pytest.importorskip("model2vec"):
            exec(compile(snippet, "README.md", "exec"), names := {})
    shape = names["similarities"].shape if kind == "words" else (1, 2)
    assert tuple(shape) == (1, 2)
    if kind != "words":
        assert abs(names["embeddings"] - expected).max() < 1e-5


# --- Licences and names ---


def test_a_licence_is_stated_once_and_kept(directory):
    folder = directory(all_results=RESULTS, run=RUN)
    for text in (write_card(folder, licence="cc-by-sa-4.0"), write_card(folder)):
        assert ModelCard(text).data.license == "cc-by-sa-4.0"
        assert "These weights have the licence cc-by-sa-4.0. " in text
    by_hand = {"license": "other", "license_name": "ours", "license_link": "LICENSE"}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(by_hand)}---\n")
    card = ModelCard(write_card(folder))
    assert by_hand.items() <= card.data.to_dict().items()
    assert "These weights have the licence ours." in card.text


def test_base_model_and_licence_are_those_of_the_start(directory, caplog):
    start = {"base_model": "user/first", "license": "Odd 1.0"}
    text = write_card(directory(run=RUN | {"start": start}))
    data = ModelCard(text).data
    assert (data.base_model, data.license, data.license_name) == ("user/first", "other", "Odd 1.0")
    assert problems(text) == []
    # another run in the folder: the earlier card's licence is that of other weights
    text = write_card(directory(run=RUN | {"start": {"base_model": "user/second", "license": "unknown"}}))
    assert "weights from another start" in caplog.text
    assert ModelCard(text).data.license == "unknown"
    assert "is unknown: their start states none" in text
    run = {"start": {"base_model": ["a/b", "../outputs"], "license": "mit"}, "local": ["corpus"]}
    text = write_card(directory(run=RUN | run))
    assert (ModelCard(text).data.base_model, ModelCard(text).data.datasets) == (None, None)
    assert "have the licence mit, as their start has." in text
    names = ("user/name", "user/name:en", "name", "a/b/c", "a b/c", None)
    assert [is_hub_name(name) for name in names] == [True, True, False, False, False, False]


def test_the_command_says_what_is_wrong(tmp_path, failure_of):
    assert "'M I T' is no licence as the Hub names them" in failure_of(model_card.main, tmp_path, "--license", "M I T")
    assert "'name', expected user/name." in failure_of(model_card.main, tmp_path, "--hub_model_id", "name")


def test_the_command_makes_the_card_from_the_folder_alone(directory, run_here, tmp_path):
    folder = directory(all_results=RESULTS, run=RUN)
    expected = write_card(folder, "user/name", "mit")
    (tmp_path / "elsewhere").mkdir()
    moved = folder.rename(tmp_path / "elsewhere" / "encoder")
    (moved / "README.md").unlink()
    run_here(model_card.main, moved, "--license", "mit", "--hub_model_id", "user/name")
    assert (moved / "README.md").read_text() == expected


# --- What was measured ---


def test_a_probe_says_what_its_numbers_rest_on():
    text = probe_table(PROBE)
    names = re.findall(r"^\| (before pretraining|after pretraining|TF-IDF) ", text, re.M)
    assert names == ["before pretraining", "after pretraining", "TF-IDF"]
    assert "over 40 classes on 1,999 sealed test documents" in text
    assert "is on 300 validation documents." in text
    assert text.endswith("seen in pretraining: 12.5 %; with near-duplicates: unknown.")


@pytest.mark.parametrize(
    ("task", "names", "shown"),
    [(LINKS, ["accuracy", "f1", "roc_auc"], " ROC-AUC |"), (CLASSIFICATION, ["accuracy", "macro_f1"], " Macro-F1 |")],
)
def test_a_card_shows_what_the_file_of_results_states(directory, tmp_path, task, names, shown):
    folder = directory(all_results=RESULTS, run=RUN)
    ours = row(str(folder), 0.4, names, head="cosine", seen_in_pretraining_share=0.125, near_duplicate_share=0.25)
    add_results([str(folder)], "Measured", "news", write_rows(tmp_path / "evaluation", [ours], task))
    card = ModelCard.load(folder / "README.md")
    assert [entry.metric_name for entry in card.data.eval_results] == [f"{name} (cosine)" for name in names]
    assert {entry.task_type for entry in card.data.eval_results} == {task.name}
    assert shown in card.text
    assert "saw 12.5 % of the test" in card.text
    write_card(folder)  # again, from what the folder keeps
    assert ModelCard.load(folder / "README.md").content == card.content


def test_results_stand_beside_the_baselines_of_their_run_and_take_the_place_of_older_ones(directory, tmp_path, caplog):
    folder, data, output_dir = directory(run=RUN), tmp_path / "secret" / "x.parquet", tmp_path / "p"
    other = shutil.copytree(folder, tmp_path / "other" / folder.name)  # of the same name
    data.parent.mkdir()
    data.touch()
    listed = [row(str(folder), 0.111), row(str(other), 0.444), row("tfidf", 0.222)]
    add_results([str(folder), str(other), "tfidf"], "Classification", str(data), write_rows(output_dir, listed))
    for place, value in ((folder, 0.111), (other, 0.444)):
        text = (place / "README.md").read_text()
        assert [entry.metric_value for entry in ModelCard(text).data.eval_results] == [value, value]
        assert "### Classification: x.parquet" in text
        assert "secret" not in text
        for shown in ("11.1", "22.2", "44.4"):
            assert shown in text
    add_results([str(folder)], "Classification", "news", write_rows(output_dir, [row(str(folder), 0.333)]))
    assert "had results on x.parquet from an --output_dir of the same name" in caplog.text
    second = (folder / "README.md").read_text()
    assert "33.3" in second
    assert "11.1" not in second


def test_a_member_of_a_group_has_its_own_numbers_and_is_named_as_one():
    def evaluation_of(results, encoder):
        return [CardEvaluation("Probes", "news, two parts", CLASSIFICATION, rows(results), encoder)]

    merged, members = make_group("A=a1,a2", ["a1", "a2"], 2.0)
    for number, result in enumerate(members):
        entries = model_index(None, evaluation_of([merged, make_result("tfidf", 1.0)], f"a{number + 1}"))
        assert [entry.metric_name for entry in entries] == ["accuracy (linear)", "macro_f1 (linear)"]
        assert entries[0].metric_value == round(float(result.of_runs("accuracy").mean()), 4)
        assert (entries[0].dataset_name, entries[0].dataset_type) == ("news, two parts", "news")
    assert len(model_index(None, evaluation_of([merged, members[0]], "a1"))) == 2  # once each
    few = evaluation_of([replace(members[0], shots=5)], "a1")
    assert model_index(None, few)[0].metric_name == "accuracy (linear, 5 labels a class)"
    assert "A is the mean over seeds of which this model is one" in evaluation_text({}, evaluation_of([merged], "a1"))


# --- The cards that are shipped ---


@pytest.mark.parametrize("card", SHIPPED, ids=lambda card: card.parent.name)
def test_the_cards_that_are_shipped_are_valid_and_have_their_pictures(card):
    content = ModelCard.load(card)
    assert problems(content.content) == []
    assert all((card.parent / name).exists() for name in re.findall(r"!\[.*?\]\((.*?)\)", content.text))
    for table in tables_of_results({}, read_evaluations(card.parent)):
        assert table.markdown() in content.text


def test_papers_are_cited_as_they_were_published():
    without_paper = {"info_nce", "neighbour_distillation"}  # of the view, and of this project
    assert OBJECTIVES.keys() - without_paper <= PAPERS.keys()
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    published = [paper for paper in references if paper["type"] == "conference-paper"]
    for paper in published:
        (line,) = {line for line in PAPERS.values() if paper["title"] in line}
        assert line.startswith(paper["authors"][0]["family-names"])
        assert line.endswith(f" {paper['year']}.")
