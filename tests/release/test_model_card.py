"""A card says what the files of its folder say, nothing else, and no name in them can break it."""

import json
import re
import shutil
from typing import get_args

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from transformers import DistilBertConfig

from docsplit.evaluation.results.result import CLASSIFICATION, LINKS
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.pooling import Pooling
from docsplit.release import model_card
from docsplit.release.front_matter import start_of
from docsplit.release.model_card import PAPERS, POOLED, add_results, write_card
from docsplit.release.run_record import Licence, Start
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel
from tests.conftest import tiny_config
from tests.processes import ROOT, run
from tests.release.hostile_cards import raw_html
from tests.release.hub_rules import problems

RESULTS = {
    "documents_used": 71234, "documents_dropped": 6, "documents_dropped_empty": 5, "documents_dropped_not_a_string": 1,
    "documents_truncated_share": 0.2345, "tokens_truncated_share": 0.1357, "global_step": 4321,
    "train_tokens": 98765432, "train_runtime": 777.4, "train_tokens_per_second": 127046.0, "train_loss": 1.23456,
}  # fmt: skip
PROBE = {
    "probe_classes": 40, "probe_test_documents": 1999, "probe_before_5shot_accuracy": 0.101,
    "probe_before_5shot_accuracy_std": 0.011, "probe_before_accuracy": 0.201, "probe_after_5shot_accuracy": 0.501,
    "probe_after_5shot_accuracy_std": 0.012, "probe_after_accuracy": 0.701, "tfidf_5shot_accuracy": 0.301,
    "tfidf_5shot_accuracy_std": 0.013, "tfidf_accuracy": 0.801,
}  # fmt: skip
RUN = {
    "recipe": "small.yaml", "options": {"corpus": "wikimedia/wikipedia:20231101.en", "view": "crop",
    "model_name_or_path": "google/bert_uncased_L-2_H-128_A-2", "lora_r": "8"}, "hardware": "Some CPU, 2 cores, 24 GB",
    "processes": 1, "versions": {"torch": "2.13.0", "spacy": None}, "commit": "0123abc", "hub_model_id": None,
}  # fmt: skip
TRAINED = sorted(path.with_name("README.md") for path in (ROOT / "model_cards").glob("*/all_results.json"))
NASTY = 'Q"uote: a\n---\nlicense: stolen\n<script>alert(1)</script> | *x* `y` [z](http://w) {{ 7 * 7 }} é\ud800'


@pytest.fixture
def directory(tmp_path, wordpiece):
    torch.manual_seed(0)
    folder = tmp_path / "encoder"
    DocSplitForContrastivePretraining(tiny_config(wordpiece), pooling="mean").save_pretrained(folder)

    def fill(**files):
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return folder

    return fill


def row(encoder, head="mlp", shots=None, value=0.5):
    means = {f"{name}_{part}": number for name in ("accuracy", "macro_f1") for part, number in
             (("mean", value), ("std", 0.01))}  # fmt: skip
    return {"encoder": encoder, "head": head, "shots": shots, "features": "raw", "runs": 3} | means


def write_rows(folder, rows):
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"task": CLASSIFICATION.to_json(), "rows": rows}))
    return folder


def test_numbers_of_the_files_are_in_the_card(directory):
    text = write_card(directory(all_results=RESULTS | PROBE, run=RUN))
    for shown in ("71,234", "dropped: empty", "23.4%", "13.6%", "4,321", "98,765,432", "777", "127,046", "1.2346",
                  "0.501 ± 0.012", "0.801", "Some CPU, 2 cores, 24 GB", "torch 2.13.0", "0123abc", "`lora_r`",
                  "started from `google/bert_uncased_L-2_H-128_A-2`", "view `crop`", "Izacard", "LoRA"):  # fmt: skip
        assert shown in text, shown
    data = ModelCard(text).data
    assert data.base_model == "google/bert_uncased_L-2_H-128_A-2"
    assert data.datasets == ["wikimedia/wikipedia"]
    assert {result.metric_name: result.metric_value for result in data.eval_results} == {
        "Accuracy, 5 labels a class": 0.501, "Accuracy": 0.701,
    }  # fmt: skip


def test_without_files_the_card_says_that_nothing_is_known(directory):
    text = write_card(directory())
    assert "Nothing was measured." in text
    assert "Nothing about its training data is known" in text
    assert "not recorded" in text
    assert ModelCard(text).data.eval_results is None
    stated = set(re.findall(r"\d[\d.,]*\d|\d", text.split("## Training")[1].split("## Papers")[0]))
    assert stated == {"128", "2.0"}  # the length that it reads, Apache-2.0


def test_it_is_made_again_from_the_folder_alone(directory, tmp_path):
    folder = directory(all_results=RESULTS, run=RUN)
    expected = write_card(folder)
    moved = tmp_path / "elsewhere" / "encoder"
    moved.parent.mkdir()
    folder.rename(moved)
    (moved / "README.md").unlink()
    run("-m", "docsplit.release.model_card", moved)
    assert (moved / "README.md").read_text() == expected


def test_a_card_tells_readers_to_load_where_it_will_be(directory, monkeypatch):
    folder = directory(all_results=RESULTS, run=RUN)
    monkeypatch.setattr("sys.argv", ["model_card.py", str(folder), "--hub_model_id", "someone/name"])
    model_card.main()
    card = ModelCard.load(folder / "README.md")
    assert card.data.model_name == "someone/name"
    assert 'SentenceTransformer("someone/name")' in card.text


def test_no_name_can_break_a_card(directory, tmp_path):
    run = RUN | {"options": {"corpus": NASTY, "view": NASTY, "model_name_or_path": NASTY}, "hardware": NASTY,
                 "recipe": NASTY, "commit": NASTY, "hub_model_id": None}  # fmt: skip
    folder = directory(all_results=RESULTS, run=run)
    rows = [row(str(folder), value=0.25), row(NASTY, value=0.75)]
    add_results([str(folder)], NASTY, NASTY, write_rows(tmp_path / "probe", rows))
    card = ModelCard.load(folder / "README.md")
    assert card.data.license is None
    assert set(card.data.to_dict()) == {"library_name", "model-index", "pipeline_tag", "tags", "widget"}
    assert problems((folder / "README.md").read_text(encoding="utf-8")) == []
    (accuracy, _) = card.data.eval_results
    assert accuracy.metric_value == 0.25
    assert "\n" not in accuracy.dataset_name
    assert raw_html(card.text) == []
    assert "{{ 7 * 7 }}" in card.text
    headings = [line for line in card.text.splitlines() if line.startswith("#")]
    assert [line for line in headings if line.startswith("## ")] == [
        "## Use", "## Training", "## Evaluation", "## Limits", "## Licence", "## Papers",
    ]  # fmt: skip
    assert "---" not in card.text.splitlines()
    tables = [line for line in card.text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (3, 4, 6) for line in tables), tables


def test_results_stand_beside_the_baselines_of_their_run_and_take_the_place_of_older_ones(directory, tmp_path, capsys):
    folder = directory(all_results=RESULTS, run=RUN)
    output_dir = tmp_path / "probe"
    write_rows(output_dir, [row(str(folder), value=0.111), row("tfidf", value=0.222)])
    data = tmp_path / "secret_folder" / "train.parquet"
    data.parent.mkdir(parents=True)
    data.touch()
    add_results([str(folder), "tfidf"], "Classification", str(data), output_dir)
    assert capsys.readouterr().out == f"The results are in the card {folder / 'README.md'}.\n"
    first = (folder / "README.md").read_text()
    assert "11.1" in first
    assert "22.2" in first
    assert "secret_folder" not in first
    assert ModelCard(first).data.eval_results[0].dataset_name == "train.parquet"
    assert "### Classification: train.parquet" in first
    (output_dir / "results.json").write_text(
        json.dumps({"task": CLASSIFICATION.to_json(), "rows": [row(str(folder), value=0.333)]})
    )
    add_results([str(folder)], "Classification", str(data), output_dir)
    second = (folder / "README.md").read_text()
    assert "33.3" in second
    assert "11.1" not in second


STATED = {
    "name": "document-ranking", "measures": {"ndcg_10": "nDCG@10", "median_rank": "Median rank"}, "main": "ndcg_10",
    "columns": ["ndcg_10"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "names", "task", "shown"),
    [
        (STATED, ["ndcg_10"], "document-ranking", "nDCG@10 | 95 % interval |"),
        (
            LINKS.to_json(),
            ["accuracy", "f1", "roc_auc"],
            "text-ranking",
            " ROC-AUC |",
        ),
        (
            CLASSIFICATION.to_json(),
            ["accuracy", "macro_f1"],
            "text-classification",
            "| 95 % interval | Macro-F1 |",
        ),
    ],
    ids=["its own", "links", "classes"],
)
def test_a_card_shows_what_the_file_of_results_states(directory, tmp_path, stated, names, task, shown):
    folder = directory(all_results=RESULTS, run=RUN)
    values = {f"{name}_{part}": 0.4 for name in names for part in ("mean", "std", "low", "high")}
    ours = {"encoder": str(folder), "head": "cosine", "shots": None, "features": "raw", "runs": 1} | values
    output_dir = tmp_path / "evaluation"
    output_dir.mkdir()
    (output_dir / "results.json").write_text(json.dumps({"task": stated, "rows": [ours]}))
    add_results([str(folder)], "Measured", "news", output_dir)
    card = ModelCard.load(folder / "README.md")
    assert [entry.metric_name for entry in card.data.eval_results] == [f"{name} (cosine)" for name in names]
    assert {entry.task_type for entry in card.data.eval_results} == {task}
    assert shown in card.text
    write_card(folder)  # again, from what the folder keeps
    assert ModelCard.load(folder / "README.md").content == card.content


def test_encoders_of_one_name_keep_their_own_numbers(directory, tmp_path):
    first = directory(all_results=RESULTS, run=RUN)
    second = tmp_path / "other" / first.name
    shutil.copytree(first, second)
    rows = [row(str(first), value=0.111), row(str(second), value=0.222), row("tfidf", value=0.333)]
    add_results([str(second), str(first)], "Classification", "news", write_rows(tmp_path / "probe", rows))
    for folder, value in ((first, 0.111), (second, 0.222)):
        card = ModelCard.load(folder / "README.md")
        assert [entry.metric_value for entry in card.data.eval_results] == [value, value]
        for shown in ("11.1", "22.2", "33.3"):
            assert shown in card.text


def test_what_is_local_is_no_link_to_the_hub(directory):
    run = RUN | {"options": {"corpus": "data/train.jsonl", "model_name_or_path": "outputs/simcse"}}
    run["local"] = ["corpus", "model_name_or_path"]
    data = ModelCard(write_card(directory(all_results=RESULTS, run=run))).data
    assert data.base_model is None
    assert data.datasets is None


def test_every_objective_of_a_paper_names_it():
    without_paper = {"info_nce", "neighbour_distillation"}  # of the view, and of this project
    assert OBJECTIVES.keys() - without_paper <= model_card.PAPERS.keys()
    assert "Bregman" in model_card.PAPERS["info_nce+bregman"]


@pytest.mark.parametrize(
    ("objective", "view", "expected"),
    [
        ("info_nce", "docsplit", "to tell documents apart: view `docsplit`, objective `info_nce`, cosine similarity, "
         "temperature 0.05."),
        ("info_nce", "query_document", "to find the documents that answer a query: view `query_document`"),
        ("momentum_contrast", "crop", "temperature 0.05, a queue of 64 negatives."),
        ("neighbour_distillation", "simcse", "to map a document to the vector that its start gave it, averaged with "
         "those of its 20 nearest neighbours in the corpus: view `simcse`, objective `neighbour_distillation`."),
        ("contrastive_tension", "simcse", "to tell documents apart: view `simcse`, objective `contrastive_tension`."),
    ],
)  # fmt: skip
def test_a_card_says_what_the_objective_taught(objective, view, expected, wordpiece, tmp_path):
    queue = {"momentum_queue_size": 64} if objective == "momentum_contrast" else {}
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), objective=objective, mlm_weight=0.0, **queue)
    model.save_pretrained(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(RUN | {"options": {"view": view}}))
    text = write_card(tmp_path)
    assert expected in text
    assert ("apart" in text) == ("apart" in expected or objective == "momentum_contrast")


def test_any_architecture_gets_a_card(tmp_path, wordpiece):
    config = DistilBertConfig(vocab_size=len(wordpiece), dim=48, n_layers=3, n_heads=2, hidden_dim=64)
    DocSplitForContrastivePretraining(config, pooling="mean").save_pretrained(tmp_path / "encoder")
    text = write_card(tmp_path / "encoder")
    assert "a document of up to 512 tokens into a vector of 48 numbers" in text
    assert "`distilbert` of 3 layers" in text


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="has no config"):
        write_card(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["FOLDER"], "has no config.json with the settings"),
        (["FOLDER/nowhere"], "has no config.json with the settings"),
        (["FOLDER", "--licence", "mit"], "unknown option --licence. Did you mean --license?"),
        (["FOLDER", "--license", "M I T"], "'M I T' is no licence as the Hub names them"),
        (["FOLDER", "--hub_model_id", "name"], "--hub_model_id is 'name', expected user/name."),
        ([], "required: directory"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line(words, says, tmp_path, monkeypatch, capsys):
    words = [word.replace("FOLDER", str(tmp_path)) for word in words]
    monkeypatch.setattr("sys.argv", ["model_card.py", *words])
    with pytest.raises(SystemExit):
        model_card.command()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_base_model_and_licence_are_those_of_the_start(directory, tmp_path, caplog):
    start = tmp_path / "start"
    start.mkdir()
    assert start_of(str(start)) == Start(None, Licence("unknown"))
    assert "states no licence" in caplog.text
    (start / "README.md").write_text("---\nbase_model: user/first\nlicense: other\nlicense_name: odd\n---\n")
    assert start_of(str(start)) == Start("user/first", Licence("other", "odd"))
    start_facts = {"base_model": "user/first", "license": "other", "license_name": "odd"}
    run = RUN | {"options": {"model_name_or_path": "start"}, "local": ["model_name_or_path"]}
    card = ModelCard(write_card(directory(all_results=RESULTS, run=run | {"start": start_facts})))
    assert (card.data.base_model, card.data.license, card.data.license_name) == ("user/first", "other", "odd")
    assert "These weights have the licence odd, as their start has." in card.text
    # another run in the folder: the earlier card's licence is that of other weights
    another = {"base_model": "user/second", "license": "unknown"}
    card = ModelCard(write_card(directory(all_results=RESULTS, run=run | {"start": another})))
    assert (card.data.base_model, card.data.license) == ("user/second", "unknown")
    assert "is unknown: their start states none" in card.text
    assert ModelCard(write_card(directory(), licence="mit")).data.license == "mit"
    assert ModelCard(write_card(directory())).data.license == "mit"


def test_a_licence_is_stated_once_and_kept(directory, caplog):
    folder = directory(all_results=RESULTS, run=RUN)
    assert "No licence was stated for these weights." in write_card(folder)
    run("-m", "docsplit.release.model_card", folder, "--license", "cc-by-sa-4.0")
    for text in ((folder / "README.md").read_text(), write_card(folder)):
        assert ModelCard(text).data.license == "cc-by-sa-4.0"
        assert "These weights have the licence cc-by-sa-4.0." in text
    with pytest.raises(ValueError, match="no licence as the Hub names them"):
        write_card(folder, licence="mine\ntags: [x]")
    (folder / "README.md").write_text("---\nlicense: mit\nmodel-index: by hand\n---\n")
    assert ModelCard(write_card(folder)).data.license == "mit"
    by_hand = {"license": "other", "license_name": "ours", "license_link": "LICENSE"}
    (folder / "README.md").write_text(
        "".join(["---\n", *(f"{key}: {value}\n" for key, value in by_hand.items()), "---\n"])
    )
    card = ModelCard(write_card(folder))
    assert by_hand.items() <= card.data.to_dict().items()
    assert "These weights have the licence ours." in card.text
    (folder / "README.md").write_text("---\nlicense: [\n---\n")
    assert ModelCard(write_card(folder)).data.license is None
    assert "cannot be read, and a licence that it may state does not count" in caplog.text


@pytest.mark.parametrize("card", TRAINED, ids=lambda card: card.parent.name)
def test_the_cards_that_are_shipped_are_valid_and_have_their_pictures(card):
    content = ModelCard.load(card)
    assert content.data.eval_results
    assert content.data.model_name.split("/")[-1] == card.parent.name
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", content.text)
    assert "training.png" in pictures
    assert all((card.parent / picture).exists() for picture in pictures)


def test_a_card_says_what_was_trained_on_and_how_much_of_the_test_was_seen(directory, tmp_path):
    folder = directory(all_results=RESULTS | {"documents_in_corpus": 80000}, run=RUN)
    shares = {"seen_in_pretraining_share": 0.125, "near_duplicate_share": 0.25, "num_parameters": 10}
    write_rows(tmp_path / "out", [row(str(folder)) | shares, row("old")])
    add_results([str(folder)], "Classification", "news.jsonl", tmp_path / "out")
    card = (folder / "README.md").read_text()
    assert re.search(r"\| documents in corpus +\| +80,000 \|\n\| documents used +\| +71,234 \|", card)
    assert "encoder saw 12.5 % of the test documents in training (25.0 % with near-duplicates)." in card
    folder = directory(all_results=RESULTS | {"documents_in_corpus": None})  # of a stream
    assert "documents in corpus" not in write_card(folder)


def test_the_card_of_a_graph_document_model(tmp_path, wordpiece):
    config = GraphDocumentConfig(tiny_config(wordpiece), graph_hidden_size=16, graph_kind="star", passage_words=60)
    settings = {"similarity": "dot", "max_seq_length": 48}
    DocSplitForContrastivePretraining(config, GraphDocumentModel(config), **settings).save_pretrained(tmp_path)
    text = " ".join(write_card(tmp_path, "someone/graph").split())
    assert (
        "It turns a document of any length, read in passages of about 60 words (up to 48 tokens each), into a vector "
        "of 16 numbers." in text
    )
    assert "`bert` of 2 layers, with 2 of graph attention over its passages (`star` graph), started from" in text
    assert 'SentenceTransformer("someone/graph", trust_remote_code=True)' in text
    assert 'With transformers alone, `AutoModel.from_pretrained("someone/graph", trust_remote_code=True)`:' in text
    assert "the first 48 tokens of a passage" in text
    assert "last hidden" not in text
    assert "Graph Attention Networks" in text


def test_a_card_has_words_for_every_pooling():
    assert set(POOLED) == set(get_args(Pooling))


def test_the_command_to_go_on_says_what_the_checkpoint_does_not(tmp_path, tiny_model, directory):
    """The view is the checkpoint's; of older ones the run's; and masked LM alone has to be asked for."""

    def command(folder, address="someone/e"):
        (line,) = re.findall(r"^    accelerate launch \S+ (.*)$", write_card(folder, address), re.M)
        return line.removeprefix("--model_name_or_path ").removeprefix('"someone/e" ').removeprefix("someone/e ")

    assert command(directory()) == "--corpus YOUR_DOCUMENTS"
    assert command(directory(run=RUN)) == "--corpus YOUR_DOCUMENTS --view crop"
    tiny_model.config.docsplit |= {"view": "query_document", "contrastive_weight": 0.0, "mlm_weight": 1.0}
    tiny_model.save_pretrained(tmp_path / "new")
    (tmp_path / "new" / "run.json").write_text(json.dumps(RUN))
    assert command(tmp_path / "new") == "--corpus YOUR_COLLECTION --contrastive_weight 0"
    tiny_model.config.docsplit |= {"view": "simcse", "contrastive_weight": 1.0}
    tiny_model.save_pretrained(tmp_path / "new")
    card = write_card(tmp_path / "new")
    assert "view `simcse`" in card
    assert "SimCSE: Simple Contrastive" in card
    assert "Unsupervised Dense" not in card  # the paper of the run's `crop`


def test_the_card_of_a_bregman_ensemble_states_the_papers_numbers(tmp_path, wordpiece):
    numbers = {"bregman_weight": 0.5, "bregman_sigma": 1.5, "bregman_subnetworks": 3, "bregman_temperature": 0.2}
    settings = {"objective": "info_nce+bregman", "contrastive_temperature": 0.07} | numbers
    DocSplitForContrastivePretraining(tiny_config(wordpiece), **settings).save_pretrained(tmp_path)
    said = "cosine similarity, temperature 0.07, Bregman loss (lambda 0.5, sigma 1.5, g 3, temperature 0.2)"
    assert said in " ".join(write_card(tmp_path).split())


def test_the_bregman_card_that_is_shipped_and_its_recipe_agree():
    """In every option that both name, but for places and how often a run logs and saves; and in the card's text."""
    card = (ROOT / "model_cards" / "bregman_small" / "README.md").read_text()
    options = {name: yaml.safe_load(value) for name, value in re.findall(r"\| `(\w+)` +\| +`(.*?)` \|", card)}
    recipe = yaml.safe_load((ROOT / "recipes" / "bregman_small.yaml").read_text())
    places = {"corpus", "model_name_or_path", "output_dir", "save_steps", "save_total_limit", "logging_steps"}
    both = options.keys() & recipe.keys() - places
    assert {"bregman_weight", "learning_rate", "max_steps", "per_device_train_batch_size", "pooling"} <= both
    assert {name: float(options[name]) if name == "learning_rate" else options[name] for name in both} == {
        name: recipe[name] for name in both
    }
    assert f"lambda {recipe['bregman_weight']}, sigma 2, g 10, temperature 0.1" in card


def test_papers_are_cited_as_they_were_published():
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    published = [paper for paper in references if paper["type"] == "conference-paper"]
    assert len(published) == 3
    for paper in published:
        (line,) = {line for line in PAPERS.values() if paper["title"] in line}
        assert line.startswith(paper["authors"][0]["family-names"])
        assert line.endswith(f" {paper['year']}.")
