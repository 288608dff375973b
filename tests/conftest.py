"""Fixtures: a small corpus made of nonsense about known topics, tiny tokenizers and encoders. No network, no GPU."""

import tests.gpus  # isort: skip (before torch)  # noqa: F401
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("HF_DATASETS_CACHE", tempfile.mkdtemp(prefix="docsplit-tests-"))

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import ByteLevelBPETokenizer
from torch.nn.attention import varlen
from transformers import BertConfig, BertModel, BertTokenizer, RobertaTokenizer

from docsplit.data.tokenization import train_wordpiece
from docsplit.modeling import packing
from docsplit.release import model_card
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.processes import free_port, spawn  # noqa: F401 (the tests have them from here)

TOPICS = {
    "kitchen": "bread butter oven flour sugar spoon recipe dough salt kettle pan crust",
    "harbour": "ship anchor sail captain rope tide cargo wharf crane gull storm lighthouse",
    "orchard": "apple tree branch ladder basket blossom pear harvest bee root pruning cider",
}
# Of models that get ids and no texts
OF_IDS = BertTokenizer(
    {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])}
)
COMMON = "the a of and in to it was with on for that"


def make_document(rng: np.random.Generator, topic: str, num_sentences: int) -> str:
    """Sentences of common words and words of the topic, capitalised and ended by a full stop."""
    sentences = []
    for _ in range(num_sentences):
        pools = [TOPICS[topic] if rng.random() < 0.5 else COMMON for _ in range(rng.integers(4, 9))]
        words = [str(rng.choice(pool.split())) for pool in pools]
        sentences.append(" ".join(words).capitalize() + ".")
    return " ".join(sentences)


def make_corpus(size: int, seed: int = 0) -> list[dict[str, str]]:
    """`size` documents of 2 to 12 sentences, with the topic as label."""
    rng = np.random.default_rng(seed)
    topics = [list(TOPICS)[index % len(TOPICS)] for index in range(size)]
    return [{"text": make_document(rng, topic, rng.integers(2, 13)), "label": topic} for topic in topics]


@pytest.fixture(autouse=True, scope="session")
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_plots_of_trainings() -> Iterator[None]:
    """Draw no figures in this process: they take a fifth of a run of two steps. Separate processes draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_card, "plot_training", lambda log_history, results, path, loss_name: path.write_bytes(b""))
        yield


def pytest_collection_finish() -> None:
    """All modules are imported: no collection of garbage, of which Trainer does one a run, need walk through them."""
    gc.freeze()


def write_checkpoint(directory: Path) -> None:
    """Write files of the names that a checkpoint has, without a manifest."""
    (directory / "1_Pooling").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(os.urandom(1000))
    for name in ("config.json", "trainer_state.json", "1_Pooling/config.json"):
        (directory / name).write_text('{"epoch": 1.0}')
    (directory / "optimizer.pt").write_bytes(b"state")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of an encoder's folder, in one file or several."""
    return {name: value for file in folder.glob("model*.safetensors") for name, value in load_file(file).items()}


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Runs a script's `main` with these options in this process, without the seconds that a new one takes to start."""

    def run(main: Callable[[], None], *words: object) -> None:
        monkeypatch.setattr(sys, "argv", ["script.py", *map(str, words)])
        main()

    environment, threads = dict(os.environ), torch.get_num_threads()
    AcceleratorState._reset_state(reset_partial_state=True)
    yield run
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(threads)


@pytest.fixture
def failure_of(run_here: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """The message that a script ends with, given options that are wrong, in a folder of this test alone."""

    def run(main: Callable[[], None], *words: object) -> str:
        monkeypatch.chdir(tmp_path)
        with pytest.raises((ValueError, OSError)) as failure:
            run_here(main, *words)
        return str(failure.value)

    return run


@pytest.fixture(scope="session")
def corpus() -> Dataset:
    return Dataset.from_list(make_corpus(90))


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in make_corpus(150)) + "\n")
    return path


@pytest.fixture(scope="session")
def spacy_pipeline(tmp_path_factory) -> Path:
    """The folder of a spaCy pipeline that knows the words of the topics: some are verbs, one has a plural's lemma."""
    import spacy

    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("attribute_ruler")
    verbs = {"knead", "sail", "prune"}
    for word in " ".join(TOPICS.values()).split():
        part = "VERB" if word in verbs else "NOUN"
        ruler.add([[{"LOWER": word}]], {"POS": part, "LEMMA": word})
    ruler.add([[{"LOWER": "ships"}]], {"POS": "NOUN", "LEMMA": "Ship"})
    ruler.add([[{"LOWER": "cold"}]], {"POS": "ADJ", "LEMMA": "cold"})
    ruler.add([[{"LOWER": "dover"}]], {"POS": "PROPN", "LEMMA": "Dover"})
    ruler.add([[{"LOWER": {"IN": COMMON.split()}}]], {"POS": "ADP", "LEMMA": "x"})
    ruler.add([[{"IS_PUNCT": True}]], {"POS": "PUNCT", "LEMMA": "."})
    nlp.add_pipe("sentencizer")  # not needed for tags
    folder = tmp_path_factory.mktemp("spacy") / "pipeline"
    nlp.to_disk(folder)
    return folder


@pytest.fixture(scope="session")
def wordpiece(corpus, tmp_path_factory):
    return train_wordpiece(corpus, "text", 300, tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture(scope="session")
def byte_level_bpe(corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bpe")
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        corpus["text"], 500, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False
    )
    tokenizer.save_model(str(directory))
    return RobertaTokenizer.from_pretrained(directory)


@pytest.fixture(params=["wordpiece", "byte_level_bpe"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def tiny_values(tokenizer, **overrides) -> dict[str, int]:
    """Sizes under the names that all BERT-like configurations share."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "pad_token_id": tokenizer.pad_token_id,
    } | overrides


def tiny_config(tokenizer, **overrides) -> BertConfig:
    return BertConfig(**tiny_values(tokenizer, **overrides))


@pytest.fixture
def tiny_model(wordpiece):
    torch.manual_seed(0)
    return DocSplitForContrastivePretraining.from_config(
        tiny_config(wordpiece), wordpiece, pooling="mean", max_seq_length=64
    )


def save_checkpoint(tokenizer, folder: Path, length: int = 40, seed: int = 0, **config: float) -> Path:
    """Write a random encoder of this project, mean-pooled."""
    torch.manual_seed(seed)
    model = DocSplitForContrastivePretraining.from_config(
        tiny_config(tokenizer, **config), tokenizer, pooling="mean", max_seq_length=length
    )
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def encoder(wordpiece, tmp_path_factory):
    return save_checkpoint(wordpiece, tmp_path_factory.mktemp("encoders") / "ours", 64)


@pytest.fixture
def texts():
    return [row["text"] for row in make_corpus(30)] + ["", "ship", "\ud800 storm"]


@pytest.fixture
def checkpoint(wordpiece, tmp_path):
    """A checkpoint of this project, which is a SentenceTransformer directory."""
    return save_checkpoint(wordpiece, tmp_path / "checkpoint")


@pytest.fixture
def any_checkpoint(tokenizer, tmp_path):
    """One with each tokenizer."""
    return save_checkpoint(tokenizer, tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def scattered(tmp_path_factory, wordpiece):
    """A folder with a random encoder, mean-pooled, whose documents lie apart: something to distil."""
    folder = tmp_path_factory.mktemp("scattered")
    return save_checkpoint(wordpiece, folder, 48, hidden_dropout_prob=0.1, initializer_range=0.3)


@pytest.fixture(scope="session")
def reads_little(tmp_path_factory, wordpiece):
    """A folder with an encoder that words explain, nearly a mean of token vectors. It reads the first ten tokens."""
    folder = tmp_path_factory.mktemp("encoders") / "reads_little"
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining.from_config(
        tiny_config(wordpiece, num_hidden_layers=1), wordpiece, pooling="mean", max_seq_length=10
    )
    embeddings = model.encoder.base_model.embeddings
    with torch.no_grad():
        embeddings.position_embeddings.weight.zero_()
        vectors = embeddings.word_embeddings.weight.normal_()
        for words in TOPICS.values():
            vectors[wordpiece.convert_tokens_to_ids(words.split())] += 0.3 * torch.randn(32)
        vectors[wordpiece.convert_tokens_to_ids([*COMMON.split(), ".", "[CLS]", "[SEP]"])] = 0
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def packs_as_on_gpu(monkeypatch):
    """Packs take CUDA's way on the CPU. PyTorch's `varlen_attn` is an exact loop here, and takes 16 bits alone."""
    text_by_text = packing._text_by_text

    def by_varlen(query, key, value, borders, dropout, *options):
        return packing._by_varlen(query, key, value, borders, int(borders.diff().max()), *options)

    def varlen_attn(query, key, value, borders, _, longest, __, scale, window_size):
        assert {query.dtype, key.dtype, value.dtype} <= {*packing.HALF}
        states = (part.transpose(0, 1)[None] for part in (query, key, value))
        reach, ahead = window_size
        return text_by_text(*states, borders, 0.0, scale, reach, reach != ahead)[0]

    monkeypatch.setattr(packing, "_text_by_text", by_varlen)
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)


@pytest.fixture
def headless(wordpiece, tmp_path):
    """A folder as `AutoModel.save_pretrained` writes it: no masked-LM head, and nothing is said about pooling."""
    torch.manual_seed(0)
    BertModel(tiny_config(wordpiece)).save_pretrained(tmp_path / "headless")
    wordpiece.save_pretrained(tmp_path / "headless")
    return tmp_path / "headless"
