"""Real processes: together they give the array of one bit for bit, one that fails ends all, a kill leaves no file."""

import re

import numpy as np
import pytest
import torch
import torch.distributed as dist

from docsplit.embedding import encode as encode_module
from docsplit.embedding.encode import embed_documents
from docsplit.modeling.encoder_with_words import Words
from docsplit.modeling.loading import load_encoder, with_words
from tests.conftest import free_port, make_corpus, save_checkpoint, spawn
from tests.embedding.test_encode import OnDisk

CHUNK = 7
TEXTS = [row["text"] for row in make_corpus(30)] + ["", "ship", "storm"]  # 5 chunks: the last round is not full


@pytest.fixture(scope="module")
def checkpoint(wordpiece, tmp_path_factory):
    return save_checkpoint(wordpiece, tmp_path_factory.mktemp("checkpoint"), 12)


def embed_all(checkpoint, folder):
    """Everything that is compared, by name; files and caches go to `folder`."""
    model = load_encoder(str(checkpoint), device="cpu")
    words = with_words(model, Words(model.tokenizer.backend_tokenizer, torch.arange(5, 30), torch.eye(25, 32)))
    cached = {"dtype": torch.float32, "micro_batch_tokens": 100}
    cached |= {"long_documents": "chunk_mean", "cache_dir": folder / "cache"}
    return {
        "plain": embed_documents(model, TEXTS, micro_batch_tokens=100)[0],
        "in a file": embed_documents(model, OnDisk(TEXTS), micro_batch_tokens=100, output_file=folder / "plain.npy")[
            0
        ],
        "fewer chunks than processes": embed_documents(model, TEXTS[:3])[0],
        "no texts": embed_documents(model, [])[0],
        "pieces": embed_documents(model, TEXTS, **cached)[0],
        "pieces, cached": embed_documents(model, TEXTS, **cached)[0],
        "words, cached, file": embed_documents(words, TEXTS, **cached, output_file=folder / "words.npy")[0],
    }


def start(rank, world_size, port):
    torch.set_num_threads(1)
    encode_module.CHUNK_TEXTS = CHUNK
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)


def worker(rank, world_size, port, checkpoint, folder):
    start(rank, world_size, port)
    np.savez(folder / f"{rank}.npz", **embed_all(checkpoint, folder))

    model = load_encoder(str(checkpoint), device="cpu")
    tokenized, kind = [], type(model.tokenizer)
    original = kind.__call__
    kind.__call__ = lambda self, texts, **options: tokenized.extend(texts) or original(self, texts, **options)
    embed_documents(model, TEXTS)
    (folder / f"{rank}.tokenized").write_text("\n".join(tokenized))

    (folder / "taken.npy.partial").mkdir(exist_ok=True)  # process 0, which writes, cannot
    others = [*TEXTS[:-1], f"{TEXTS[-1]} of process {rank}"]
    for name, texts in {"different": others, "taken": TEXTS}.items():
        try:
            embed_documents(model, texts, output_file=folder / f"{name}.npy")
        except Exception as error:
            (folder / f"{rank}.{name}").write_text(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()


def test_processes_together_give_the_array_of_one(checkpoint, tmp_path, monkeypatch):
    world_size = 3
    spawn(worker, (world_size, free_port(), checkpoint, tmp_path), nprocs=world_size)
    monkeypatch.setattr(encode_module, "CHUNK_TEXTS", CHUNK)
    (tmp_path / "alone").mkdir()
    alone = embed_all(checkpoint, tmp_path / "alone")
    for rank in range(world_size):
        together = np.load(tmp_path / f"{rank}.npz")
        assert set(together) == set(alone)
        for name, expected in alone.items():
            np.testing.assert_array_equal(together[name], expected, err_msg=name)
    names = ["plain.npy", "words.npy"]
    assert sorted(path.name for path in tmp_path.glob("*.npy")) == names  # and no different.npy
    for name in names:
        np.testing.assert_array_equal(np.load(tmp_path / name), np.load(tmp_path / "alone" / name))
    assert len(list(tmp_path.glob("cache/*/*"))) == 5

    shares = [(tmp_path / f"{rank}.tokenized").read_text().split("\n") for rank in range(world_size)]
    assert sorted(text for share in shares for text in share) == sorted(TEXTS)
    assert all(share[:CHUNK] == TEXTS[rank * CHUNK : (rank + 1) * CHUNK] for rank, share in enumerate(shares))

    for rank in range(world_size):
        error = (tmp_path / f"{rank}.different").read_text()
        assert re.match("ValueError: rank 1 on .* differs from rank 0 on .* in the texts to embed: give ", error)
    errors = [(tmp_path / f"{rank}.taken").read_text() for rank in range(world_size)]
    assert all(error.startswith("ValueError: [Errno 21] Is a directory") for error in errors)
