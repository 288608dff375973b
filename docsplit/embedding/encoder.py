"""One encoder, from its name to vectors: loaded once, checked, and handed to all that embeds with it.

embed     vectors of documents in one call: the Python API
Encoder   what the scripts hand around: the model with the options that it embeds by
"""

import contextlib
import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.util import is_sentence_transformer_model
from transformers import PreTrainedTokenizerBase

from docsplit.data.passages import split_sections
from docsplit.data.readers.base import normalized
from docsplit.data.readers.documents import Documents, documents_of
from docsplit.data.seen_documents import contamination
from docsplit.embedding.encode import (
    CHUNK_TEXTS,
    SIMILARITIES,
    QueryFacts,
    embed_documents,
    embed_queries,
    identity,
    reading_of,
)
from docsplit.embedding.encoder_arguments import EncoderArguments, LongDocuments, members_of, parse_encoder_argument
from docsplit.embedding.neighbours import smooth_texts
from docsplit.modeling.loading import (
    has_graph_attention,
    is_graph_encoder,
    load_encoder,
    pooling_of,
    prompts_of,
    reader_config,
    replace_pooling,
    tokens_read,
    without_words,
    words_of,
)
from docsplit.modeling.pooling import PoolingMode
from docsplit.runtime.files import Damaged, cache_directory, read_json
from docsplit.runtime.launching import default_dtype, describe_computing
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

Columns = dict[str, Any]  # of a row of results
# What the manifest of an index says of its encoder: `name`, `hash`, and the settings that decide the vectors.
Description = dict[str, Any]


def embed(
    encoder: str | Path | SentenceTransformer,
    documents: Documents,
    long_documents: LongDocuments = "truncate",
    show_progress: bool = False,
    prompt: str | None = None,
) -> np.ndarray:
    """Embed documents in bulk: in batches of similar length, as `encode_document` of the encoder would.

    Matrix products are bfloat16 where the hardware has it. Several processes (`torchrun`) share the work, and each
    returns the whole. Queries have `load_encoder(encoder).encode_query`.

    Args:
        encoder: a SentenceTransformer or any `AutoModel`, by its name on the Hub or its folder; or one that is loaded.
        documents: texts; `Document`s; texts by id; or a folder or a file, read in the order of `read_documents`
            (`docsplit.data.readers.documents`), which gives their ids.
        long_documents: `truncate` keeps what the encoder reads of a document, its beginning. `chunk_mean` averages the
            embeddings of pieces of that length, weighted by their numbers of tokens.
        prompt: put before each document. Default: the encoder's own.

    Returns: (N, H) float32, in the order of the documents.

    Raises:
        ValueError: if a path has nothing to read, or the encoder cannot be loaded or cut into pieces.

    Example:
        >>> from docsplit import embed
        >>> embed("sentence-transformers/all-MiniLM-L6-v2", ["boats in the harbour", "bread and butter"]).shape
        (2, 384)
    """
    texts = [document.text for document in documents_of(documents)]
    model = encoder if isinstance(encoder, SentenceTransformer) else load_encoder(str(encoder))
    return embed_documents(model, texts, prompt, long_documents, show_progress=show_progress)[0]


class Encoder:
    """An encoder with the options that it embeds by. The model is loaded once, here.

    Between uses it can `rest` on the CPU; `model` brings it back to its device.

    Args:
        name: of a SentenceTransformer or any `AutoModel`, on the Hub or here.
        options: how it embeds. Default: as the encoder itself says.
        cache_dir: where embeddings are kept; None: nowhere.

    Attributes:
        prompt, query_prompt: before each document and each query.
        max_seq_length: tokens read of a text; None: all.
        dtype: of the matrix products.
        has_words: whether the encoder adds words of documents to its vectors.
        replaced_pooling: what the checkpoint brought, where another pooling is used.

    Raises:
        ValueError: naming the encoder, if it cannot be loaded or its pooling cannot be replaced.
    """

    def __init__(self, name: str, options: EncoderArguments | None = None, cache_dir: Path | None = None):
        self.name, self.cache_dir = name, cache_dir
        self.options = given = options or EncoderArguments([name])
        self._model: SentenceTransformer = load_encoder(
            name, given.pooling, given.max_seq_length, prompt=given.prompt, query_prompt=given.query_prompt
        )
        self._device = self._model.device
        self.dtype = default_dtype(self._device) if given.dtype == "auto" else getattr(torch, given.dtype)
        self.replaced_pooling: str | None = None
        if given.override_pooling not in (None, pooling_of(self._model)):
            try:
                self.replaced_pooling = replace_pooling(self._model, given.override_pooling)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        self.prompt, self.query_prompt = prompts_of(self._model)
        self.max_seq_length = tokens_read(self._model)
        self.has_words = words_of(self._model) is not None

    @classmethod
    def of(cls, description: Description, name: str | None = None, cache_dir: Path | None = None) -> "Encoder":
        """Load the encoder that the manifest of an index describes, from another place if `name` is given.

        Its prompts are those of the manifest, whatever its files say by now.
        """
        name = name or description["name"]
        prompts = {part: description[part] for part in ("prompt", "query_prompt")}
        return cls(name, EncoderArguments([name], **description["given"], **prompts), cache_dir)

    # --- Where the model is ---

    @property
    def model(self) -> SentenceTransformer:
        """The model on its device."""
        return self._model.to(self._device)

    def rest(self) -> None:
        """Leave the memory of the GPU, if it is on one, until `model` is read again."""
        self._model.to("cpu")

    def copy(self) -> SentenceTransformer:
        """Return a copy of the model, on its device, for what changes weights or attention."""
        self.rest()
        return copy.deepcopy(self._model).to(self._device)

    def with_pooling(self, pooling: PoolingMode) -> "Encoder":
        """Return the same weights with another pooling."""
        other = copy.copy(self)
        vars(other).pop("description", None)  # of the model that it had
        other._model = self.copy()
        other.replaced_pooling = replace_pooling(other._model, pooling)
        return other

    # --- Texts to vectors ---

    def embed(self, texts: Sequence[str], show_progress: bool = False) -> np.ndarray:
        """Embed documents by `embed_documents` with the options, not smoothed: (N, H) float32."""
        return self._embed(texts, show_progress)[0]

    def _embed(self, texts: Sequence[str], show_progress: bool) -> tuple[np.ndarray, float]:
        how = self._how(show_progress) | {"long_documents": self.options.long_documents}
        return embed_documents(self.model, texts, **how)

    def _how(self, show_progress: bool) -> dict[str, Any]:
        how = {"dtype": self.dtype, "micro_batch_tokens": self.options.embedding_tokens}
        return how | {"cache_dir": self.cache_dir, "show_progress": show_progress}

    def embed_all(
        self, texts: Sequence[str], test_texts: Sequence[str] = (), show_progress: bool = False
    ) -> tuple[np.ndarray, Columns]:
        """Embed each distinct text once, and smooth where the options say so.

        Args:
            test_texts: the texts that results are measured on; the facts say whether the encoder was trained on some.

        Returns: (len(texts), H) float32, and the encoder's facts.
        """
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        self.announce(list(rows))
        first = [text for text in list(rows)[:1000] if text.strip()]
        config: Any = self._model[0].config if has_graph_attention(self._model) else None
        by_section = config is not None and config.graph_kind != "full"
        if first and by_section and not any(len(split_sections(text)) > 1 for text in first):
            logger.warning(no_sections(self.name, config.graph_kind, f"the first {len(first):,} documents"))
        vectors, seconds = self._embed(list(rows), show_progress)
        facts = self.facts(seconds, test_texts)
        if self.options.smooth_neighbours:
            vectors = smooth_texts(list(rows), vectors, self.options.smooth_neighbours)
        return vectors[[rows[text] for text in texts]], facts

    def announce(self, texts: Sequence[str], can_change: bool = True) -> None:
        """Log where the encoder computes, and how much of these texts it reads."""
        computing = describe_computing(self._device, self.dtype, reader_config(self._model))
        reading = reading_of(self._model, texts, self.options.long_documents, can_change)
        logger.info(f"Embedding with {self.name}, {computing}; {reading}.")

    def embed_parts(
        self, parts: dict[str, list[str]], show_progress: bool = False
    ) -> tuple[dict[str, np.ndarray], Columns]:
        """Embed every part (`test` is required); return one array a part, and the encoder's facts."""
        texts = [text for texts in parts.values() for text in texts]
        vectors, facts = self.embed_all(texts, parts["test"], show_progress)
        ends = np.cumsum([len(texts) for texts in parts.values()])
        return dict(zip(parts, np.split(vectors, ends[:-1]))), facts

    def embed_queries(self, queries: Sequence[str], show_progress: bool = False) -> tuple[np.ndarray, QueryFacts]:
        """Embed queries as `docsplit.embedding.encode.embed_queries` does: (Q, H) float32, and their facts."""
        return embed_queries(self.model, queries, **self._how(show_progress))

    def facts(self, seconds: float, test_texts: Sequence[str] = ()) -> Columns:
        """Describe the encoder for rows of results; the log says how much of the test it was trained on.

        Args:
            seconds: how long embedding took.
        """
        seen, near = contamination(self.name, test_texts).values()
        facts = {
            "pooling": pooling_of(self._model),
            "max_seq_length": self.max_seq_length,  # None: whole texts are read
            "num_parameters": sum(parameter.numel() for parameter in self._model.parameters()),
            "long_documents": "passages" if is_graph_encoder(self._model) else self.options.long_documents,
            "dtype": str(self.dtype).removeprefix("torch."),
            "embedding_seconds": seconds,
            "prompt": self.prompt,
            "seen_in_pretraining_share": seen,  # of the test documents; None: unknown
            "near_duplicate_share": near,
            "smooth_neighbours": self.options.smooth_neighbours,
            "kept_start": kept_start(self.name),
        }
        if self.replaced_pooling is not None:
            facts["pooling_of_checkpoint"] = self.replaced_pooling
        return facts | ({"words": self._model[-1].weight} if self.has_words else {})

    def check(self, texts: Sequence[str]) -> None:
        """Embed a few texts, so that errors come before any long work.

        Raises:
            ValueError: naming the encoder.
        """
        if self.replaced_pooling is not None:
            logger.warning(
                f"{self.name} brings {self.replaced_pooling} pooling; {self.options.override_pooling} is used "
                f"(--override_pooling, or @{self.options.override_pooling})."
            )
        try:
            self.embed(texts)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    # --- For an index ---

    @cached_property
    def description(self) -> Description:
        """Return the encoder's part of an index's manifest; `of` loads the encoder from it.

        Raises:
            ValueError: if it compares vectors neither by cosine nor by dot product.
        """
        similarity = str(self._model.similarity_fn_name)
        if similarity not in SIMILARITIES:
            raise ValueError(
                f"{self.name} compares vectors by {similarity}: an index compares by cosine or dot product alone."
            )
        local = Path(self.name)
        return {
            "name": str(local.resolve()) if local.exists() else self.name,
            "hash": identity(self._model),
            "given": {name: getattr(self.options, name) for name in ("pooling", "max_seq_length")},
            "pooling": pooling_of(self._model),
            "max_seq_length": self.max_seq_length,
            "prompt": self.prompt,
            "query_prompt": self.query_prompt,
            "similarity": similarity,
            "dimension": self._model.truncate_dim or self._model.get_embedding_dimension(),
        }

    def embed_for_index(self, texts: Sequence[str]) -> np.ndarray:
        """Embed documents or passages, (N, H) float32, of length one if the similarity is the cosine."""
        return self._comparable(self.embed(texts, show_progress=True))

    def embed_query(self, text: str) -> np.ndarray:
        """Embed a query for an index, (H,) float32; it is not kept in the cache."""
        return self._comparable(embed_queries(self.model, [text])[0])[0]

    def _comparable(self, vectors: np.ndarray) -> np.ndarray:
        return unit(vectors) if self.description["similarity"] == "cosine" else vectors

    def count_tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, int] | None:
        """Count the tokens of texts, whole, (N,), and those that the encoder reads of each beside prompt and marks.

        It tokenises once more, and truncates nothing. None for an encoder that reads whole texts, or no tokens.
        """
        first, limit = without_words(self._model)[0], self.max_seq_length
        tokenizer = getattr(first, "processor", None)
        if limit is None or not isinstance(first, Transformer) or not isinstance(tokenizer, PreTrainedTokenizerBase):
            return None
        lengths: list[int] = []
        for start in range(0, len(texts), CHUNK_TEXTS):
            chunk = list(map(normalized, texts[start : start + CHUNK_TEXTS]))
            encoded = tokenizer(chunk, add_special_tokens=False, return_attention_mask=False, verbose=False)
            lengths += map(len, encoded["input_ids"])
        return np.array(lengths), max(limit - len(tokenizer(self.prompt)["input_ids"]), 0)


def kept_start(name: str) -> bool:
    """Whether a folder holds the start of its training, which did not beat it on --probe_corpus."""
    path = Path(name) / "all_results.json"
    with contextlib.suppress(Damaged, OSError):
        return bool(read_json(path).get("kept_start"))
    return False


def no_sections(name: str, graph_kind: str, documents: str) -> str:
    """Say that an encoder finds no sections to join passages by."""
    return (
        f"{name} joins passages by section (graph_kind {graph_kind}), and none of {documents} has two: all passages "
        "of a document are joined. docs/datasets.md says where sections come from."
    )


@dataclass(frozen=True)
class EncoderGroup:
    """The encoders of one argument of --model_name_or_path.

    There is one encoder, or one for each pretraining seed; names such as tfidf have none.
    """

    name: str
    encoders: list[Encoder]

    @property
    def members(self) -> list[str]:
        """Return the encoders' names."""
        return [encoder.name for encoder in self.encoders] or [self.name]

    def check(self, texts: Sequence[str]) -> None:
        """Check each encoder with `Encoder.check`; warn where they read different numbers of tokens."""
        for encoder in self.encoders:
            encoder.check(texts)
            encoder.rest()
        lengths = {encoder.max_seq_length for encoder in self.encoders}
        if len(lengths) > 1:
            shown = " and ".join(map(str, sorted(lengths, key=str)))
            logger.warning(
                f"The encoders of {self.name} read {shown} tokens: --max_seq_length sets one length for all."
            )


def load_groups(
    names: Iterable[str], options: EncoderArguments, not_encoders: Sequence[str] = ()
) -> list[EncoderGroup]:
    """Load the encoders of all arguments, each once, with the shared cache; they rest on the CPU until they are used.

    Args:
        not_encoders: names among them that stand for something else, such as tfidf.
    """
    loaded: dict[tuple[str, PoolingMode | None, str | None], Encoder] = {}
    groups = []
    for name in names:
        members, stated = ([] if name in not_encoders else members_of(name)), parse_encoder_argument(name)
        keys = [(member, stated.pooling, stated.prompt) for member in members]
        for key in keys:
            if key in loaded:
                continue
            own: dict[str, Any] = {} if stated.prompt is None else {"prompt": stated.prompt}
            if stated.pooling is not None:  # what an argument states of its encoder wins
                option = "override_pooling" if is_sentence_transformer_model(key[0]) else "pooling"
                own |= {"pooling": None, "override_pooling": None, option: stated.pooling}
            loaded[key] = Encoder(key[0], replace(options, **own), cache_directory())
            loaded[key].rest()
        groups.append(EncoderGroup(name, [loaded[key] for key in keys]))
    return groups
