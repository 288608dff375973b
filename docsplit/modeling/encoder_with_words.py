"""Modules of a SentenceTransformer that adds the words of whole documents to the vectors of an encoder.

    EncoderWithWords    the first module: wraps the encoder's, and looks up the tokens of the whole text
    ...                 the encoder's other modules: pooling, normalisation
    AddWords            the last module: the encoder's vector and that of the words, one vector of the same space

The vectors of tokens are made by `docsplit.embedding.lexical_ridge`. A copy of this file is in each folder of such an
encoder: `SentenceTransformer(path, trust_remote_code=True)`.
"""

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from sentence_transformers.sentence_transformer.modules import InputModule, Module
from sentence_transformers.util import import_module_class
from tokenizers import Tokenizer
from torch import Tensor, nn

Features = dict[str, Any]  # what modules of SentenceTransformer hand on, by name

WORDS_FOLDER = "words"  # in the folder of the encoder
WORD_FEATURES = ("word_ids", "word_starts", "word_weights")  # what `Words.preprocess` gives
HUB_OPTIONS = ("token", "cache_folder", "revision", "local_files_only")
WORDS_FILES = CONFIG, TABLE, TOKENIZER = "config.json", "words.safetensors", "tokenizer.json"
WORDS_DIGEST = "digest"  # in the metadata of the table
TEXTS_AT_ONCE = 256  # tokenised at once: a token takes some hundred bytes on the way to its id


class Words(nn.Module):
    """Turn texts into the directions of the sums of their token vectors; whole texts, however long.

    Args:
        tokenizer: that neither truncates nor pads.
        pieces: (P,) the tokens that have a vector; all others count as none.
        vectors: (P, H) float32.
        sublinear: a token that a text has c times counts 1 + ln c times, in place of c times.
        neighbours: that the targets were averaged with; whoever fits the words anew does the same.
    """

    def __init__(
        self, tokenizer: Tokenizer, pieces: Tensor, vectors: Tensor, sublinear: bool = False, neighbours: int = 0
    ):
        super().__init__()
        self.tokenizer, self.pieces, self.sublinear, self.neighbours = tokenizer, pieces, sublinear, neighbours
        rows = torch.zeros(max(token_count(tokenizer), 1), dtype=torch.long)  # row 0: no vector
        rows[pieces] = torch.arange(1, len(pieces) + 1)
        self.rows: Tensor
        self.register_buffer("rows", rows)
        table = torch.cat([torch.zeros(1, vectors.shape[1]), vectors.float()])
        self.table = nn.EmbeddingBag.from_pretrained(table, freeze=True, mode="sum")

    def preprocess(self, texts: Sequence[str]) -> Features:
        """Return the token ids of D texts end to end, where each starts (D,), and weights if counts are damped."""
        ids = token_ids(self.tokenizer, texts)
        nothing = np.empty(0, dtype=np.int64)
        features = {"word_ids": np.concatenate([nothing, *ids]), "word_starts": np.cumsum([0, *map(len, ids)])[:-1]}
        if self.sublinear:
            damped = [_damped(text_ids) for text_ids in ids]
            features["word_weights"] = np.concatenate([nothing.astype(np.float32), *damped])
        return {name: torch.from_numpy(values) for name, values in features.items()}

    def forward(self, word_ids: Tensor, word_starts: Tensor, word_weights: Tensor | None = None) -> Tensor:
        """Return (D, H) float32: directions of length one, zero for a text without any of the tokens."""
        with torch.autocast(word_ids.device.type, enabled=False):
            table = self.table.weight.float()  # after `.half()` too, for hundreds of words are summed
            summed = F.embedding_bag(
                self.rows[word_ids], table, word_starts, mode="sum", per_sample_weights=word_weights
            )
            return F.normalize(summed, dim=-1)

    def vectors(self) -> Tensor:
        """Return the vectors of `pieces`, (P, H)."""
        return self.table.weight[1:]

    def save(self, folder: Path) -> None:
        """Write tokens, vectors and tokenizer."""
        tensors = {"pieces": self.pieces.cpu(), "vectors": self.vectors().detach().cpu().float().contiguous()}
        tensors |= {"sublinear": torch.tensor(self.sublinear), "neighbours": torch.tensor(self.neighbours)}
        self.tokenizer.save(str(folder / TOKENIZER))
        save_file(tensors, folder / TABLE, metadata={WORDS_DIGEST: _digest(tensors, folder / TOKENIZER)})

    @classmethod
    def load(cls, table: str, tokenizer: str) -> "Words":
        """Load what `save` wrote.

        Raises:
            ValueError: naming the file, if it is not what `save` wrote, with this tokenizer.
        """
        try:
            with safe_open(table, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            is_whole = metadata.get(WORDS_DIGEST) == _digest(tensors, Path(tokenizer))
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"{table} is damaged: fit the words again. The cause: {error}") from error
        if not is_whole:
            raise ValueError(f"{table} or {tokenizer} has changed since they were written: fit the words again.")
        settings = bool(tensors["sublinear"]), int(tensors["neighbours"])
        return cls(Tokenizer.from_file(tokenizer), tensors["pieces"], tensors["vectors"], *settings)


def _digest(tensors: dict[str, Tensor], tokenizer: Path) -> str:
    """Hash the tensors and the tokenizer's file: a damaged table would give other vectors without a word."""
    digest = hashlib.blake2b(tokenizer.read_bytes(), digest_size=16)
    for name in sorted(tensors):
        values = tensors[name].numpy()
        digest.update(f"{name} {values.dtype} {values.shape};".encode() + values.tobytes())
    return digest.hexdigest()


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each whole text, without special tokens; a lone surrogate reads as a question mark."""
    ids: list[np.ndarray] = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        chunk = [text.encode("utf-8", "replace").decode() for text in texts[start : start + TEXTS_AT_ONCE]]
        encodings = tokenizer.encode_batch_fast(chunk, add_special_tokens=False)
        ids += [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]
    return ids


def _damped(ids: np.ndarray) -> np.ndarray:
    """Return for each id of a text (T,) the share (1 + ln c) / c, c being how often the text has it."""
    _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return ((1 + np.log(counts)) / counts).astype(np.float32)[inverse]


def token_count(tokenizer: Tokenizer) -> int:
    """Return the number of token ids, those without a token among them."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def add_words(vectors: Tensor, words: Tensor, weight: float) -> Tensor:
    """Add directions of words to vectors of an encoder: unit(unit(e) + weight r), of the length that e has.

    Args:
        vectors: e, (D, H).
        words: r, (D, H), of length one; where it is zero, e stays as it is.
    """
    length = vectors.norm(dim=-1, keepdim=True)
    summed = F.normalize(F.normalize(vectors, dim=-1) + weight * words, dim=-1) * length
    return torch.where(words.any(dim=-1, keepdim=True), summed, vectors)


class EncoderWithWords(InputModule):
    """The first module of an encoder, and the words of the texts that it is given.

    `encode` and `encode_document` look up words; `encode_query` does not. A prompt stands before the text that the
    encoder reads, and is no part of the words.

    Args:
        inner: the encoder's first module.
        inner_type: its class, as modules.json names it.
    """

    def __init__(self, inner: Any, words: Words, inner_type: str):
        super().__init__()
        self.inner, self.words, self.inner_type = inner, words, inner_type
        self.forward_kwargs = getattr(inner, "forward_kwargs", set())

    # --- What others ask of the first module of an encoder ---

    @property
    def model(self) -> Any:
        """Return the encoder's model."""
        return self.inner.model

    @property
    def config(self) -> Any:
        """Return the configuration of the encoder's model; None where it has none."""
        return getattr(self.inner, "config", None)

    @property
    def processor(self) -> Any:
        """Return the encoder's tokenizer."""
        return getattr(self.inner, "processor", None) or self.inner.tokenizer

    @property
    def tokenizer(self) -> Any:  # type: ignore[override]
        """Return the encoder's tokenizer."""
        return self.inner.tokenizer

    @property
    def max_seq_length(self) -> Any:
        """The number of tokens that the encoder reads; words are looked up in the whole text."""
        return getattr(self.inner, "max_seq_length", None)

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.inner.max_seq_length = value

    def get_embedding_dimension(self) -> int:
        """Return H of the inner module."""
        return self.inner.get_embedding_dimension()

    # --- Texts to features ---

    def preprocess(self, inputs: Any, prompt: str | None = None, task: str | None = None, **kwargs: Any) -> Features:
        """Return the features of the inner module, and the token ids of whole texts unless they are queries."""
        features = self.inner.preprocess(inputs, prompt=prompt, task=task, **kwargs)
        return features if task == "query" else features | self.words.preprocess(inputs)

    def forward(self, features: Features, **kwargs: Any) -> Features:
        """Run the inner module; add `words` (D, H) where the texts are no queries."""
        of_words = {name: features.pop(name) for name in WORD_FEATURES if name in features}
        features = self.inner(features, **kwargs)
        return features | {"words": self.words(**of_words)} if of_words else features

    # --- Files ---

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the inner module where it would be without words, and the words in a folder beside it."""
        self.inner.save(output_path, *args, **kwargs)
        if type(self.inner).__module__.startswith("transformers_modules."):  # code that a folder brought
            shutil.copy(str(sys.modules[type(self.inner).__module__].__file__), output_path)
        folder = Path(output_path) / WORDS_FOLDER
        folder.mkdir(exist_ok=True)
        self.words.save(folder)
        (folder / CONFIG).write_text(json.dumps({"inner_type": self.inner_type}, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(  # type: ignore[override]
        cls, model_name_or_path: str, module_classes: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> "EncoderWithWords":
        """Load a folder or a repository; `kwargs` are those of sentence-transformers.

        Args:
            module_classes: gives the class of the inner module by its name in modules.json. Default: as
                sentence-transformers does, from the code that the folder carries if that is trusted.

        Raises:
            ValueError: naming the file that is missing or damaged.
        """
        hub = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
        files = {name: cls.load_file_path(model_name_or_path, name, WORDS_FOLDER, **hub) for name in WORDS_FILES}
        if missing := [f"{WORDS_FOLDER}/{name}" for name, path in files.items() if path is None]:
            raise ValueError(f"{model_name_or_path} has no {' and no '.join(missing)}: fit the words again.")
        inner_type: Any = json.loads(Path(str(files[CONFIG])).read_text(encoding="utf-8")).get("inner_type")
        if module_classes is None:
            trusts = kwargs.get("trust_remote_code", False)
            inner_class: Any = import_module_class(inner_type, model_name_or_path, trust_remote_code=trusts, **hub)
        else:
            inner_class = module_classes.get(inner_type)
        if issubclass(inner_class, cls):
            raise ValueError(f"The module {inner_type!r} is inside itself by {WORDS_FOLDER}/{CONFIG}.")
        words = Words.load(str(files[TABLE]), str(files[TOKENIZER]))
        return cls(inner_class.load(model_name_or_path, **kwargs), words, inner_type)


class AddWords(Module):
    """The last module of an encoder with words: adds them to its vectors.

    Args:
        weight: of the words; the encoder's vector has 1.

    Raises:
        ValueError: for a weight that is no number of 0 or more.
    """

    config_keys = ["weight"]  # noqa: RUF012

    def __init__(self, weight: float = 1.0):
        super().__init__()
        if not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise ValueError(f"The weight of words is {weight!r}: expected a number of 0 or more, such as 1.")
        self.weight = weight

    def forward(self, features: Features, **kwargs: Any) -> Features:
        """Change `sentence_embedding` (D, H) by `words`, where there are any."""
        words = features.pop("words", None)
        if words is not None:
            vectors = features["sentence_embedding"]
            summed = add_words(vectors.float(), words.to(vectors.device), self.weight)
            features["sentence_embedding"] = summed.to(vectors.dtype)
        return features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the weight."""
        self.save_config(output_path)
