"""The contenders of `benchmarks.speed.training` that embed: `docsplit.embedding.encode`, `SentenceTransformer.encode`.

They need all of requirements.txt, which a machine that only trains may lack. So a contender imports its packages when
it is made.
"""

import functools
from typing import Any

import numpy as np
from transformers import BertConfig

from benchmarks.speed.jobs import MAX_LENGTH, SEED, Job, layer_flops, load_sentence_transformer
from benchmarks.speed.meters import Memory, fastest, seconds_of
from modeling_docsplit import DocSplitForContrastivePretraining


class EncodingContender:
    """Embeds texts in float32. Subclasses set `encoder`, the BERT, and `encode`.

    The texts are whole documents of the built-in corpus, with a vocabulary trained on it. With words of one
    length sentence-transformers, which sorts by characters, would sort by tokens.
    """

    encoder: Any
    settings: dict[str, Any]

    def __init__(self, job: Job):
        from docsplit.data.corpora import load_corpus
        from docsplit.data.tokenization import train_wordpiece
        from docsplit.runtime.files import cache_directory

        corpus = load_corpus("python_docs")
        vocab_size = BertConfig.from_pretrained(job.folder).vocab_size
        self.tokenizer = train_wordpiece(corpus, "text", vocab_size, cache_directory())
        self.tokenizer.model_max_length = MAX_LENGTH
        self.corpus: list[str] = corpus["text"][:]
        self.job, self.settings = job, {}
        self.memory = Memory(job.device)

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return the vectors (N, H) of N texts, in their order, float32."""
        raise NotImplementedError

    def texts(self, round_number: int) -> list[str]:
        """Four times as many as a round of training has views: it is faster, and sorting needs something to sort."""
        rng = np.random.default_rng((SEED, round_number))
        rows = rng.integers(len(self.corpus), size=4 * 2 * self.job.steps * self.job.batch_size)
        return [self.corpus[row] for row in rows]

    def prepare(self) -> np.ndarray:
        """Return the vectors of some texts."""
        return self.encode(self.texts(0)[:64])

    def choose(self) -> None:
        """Choose the contender's settings, if it has any."""

    def warm_up(self) -> dict[str, Any]:
        """Encode the texts of the first round; return the peak of memory and the settings."""
        self.choose()
        self.memory.start()
        self.encode(self.texts(0))
        self.memory.stop()
        return {"peak_memory_mb": self.memory.peak / 2**20, "settings": self.settings}

    def measure(self, round_number: int) -> dict[str, float]:
        """Time a round: tokens, without padding, and useful floating-point operations a second."""
        texts = self.texts(round_number)
        lengths = [len(ids) for ids in self.tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]]
        if self.job.keep_freed_memory:
            self.memory.reserve()
        self.encode(texts[:64])
        seconds = seconds_of(self.encode, texts)
        self.memory.release()
        return {
            "tokens_per_second": sum(lengths) / seconds,
            "flops_per_second": layer_flops(self.encoder, np.array(lengths, dtype=float)) / 3 / seconds,  # no backward
        }


class DocSplitEncode(EncodingContender):
    """This project's bulk embedding, with its defaults."""

    def __init__(self, job: Job):
        from docsplit.embedding.encode import encode

        super().__init__(job)
        model = DocSplitForContrastivePretraining.from_pretrained(job.folder).to(job.device)
        self.encoder = model.encoder.base_model
        self.encode = functools.partial(encode, self.encoder, self.tokenizer)  # type: ignore[method-assign]


class SentenceTransformerEncode(EncodingContender):
    """The same encoder with the same tokenizer, read by sentence-transformers."""

    def __init__(self, job: Job):
        import sentence_transformers  # noqa: F401  before the memory is measured

        super().__init__(job)
        self.model = load_sentence_transformer(job)
        self.model[0].processor = self.tokenizer
        self.encoder = self.model[0].model
        self.settings = {"batch_size": 32}

    def encode(self, texts: list[str]) -> np.ndarray:
        """Embed by sentence-transformers, which sorts by characters and pads batch by batch."""
        return self.model.encode(texts, show_progress_bar=False, **self.settings)

    def choose(self) -> None:
        """Keep the batch size, of four, with which a quarter of the texts is fastest."""
        self.settings = fastest([{"batch_size": size} for size in (8, 16, 32, 64)], self.seconds_with)

    def seconds_with(self, settings: dict[str, Any]) -> float:
        """Return the seconds that the first quarter of the texts takes with these settings."""
        self.settings = settings
        return seconds_of(self.encode, self.texts(0)[: len(self.texts(0)) // 4])
