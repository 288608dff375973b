"""The options of scripts that compare encoders, and what they do with them.

Encoders are loaded, and what that needs is imported, when a method is called: `--help` reads this module.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from docsplit.modeling.families.longformer import LongDocuments
from docsplit.modeling.settings import Pooling

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


@dataclass
class EncoderArguments:
    """The encoders to compare and how they embed."""

    model_name_or_path: list[str] = field(
        metadata={
            "help": "Encoders on the Hub or here, side by side: SentenceTransformers or any AutoModel. One method's "
            "encoders from several pretraining seeds are one argument, PATH,PATH,PATH or NAME=PATH,PATH,PATH: a row "
            "with their mean, and intervals over seeds too. NAME=PATH names a single one."
        }
    )
    pooling: Pooling | None = field(
        default=None,
        metadata={"help": "Token states to embedding, for encoders that say nothing about it. Default: cls."},
    )
    override_pooling: Pooling | None = field(
        default=None, metadata={"help": "In place of the pooling that an encoder brings. Default: what it brings."}
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Tokens of a text, with special ones. Default: the checkpoint's, else 512 (the paper's)."},
    )
    long_documents: LongDocuments = field(
        default="truncate",
        metadata={"help": "Of longer texts: the beginning alone, or the mean over chunks of that length."},
    )
    prompt: str | None = field(
        default=None, metadata={"help": "Put before each text (INSTRUCTOR, E5). Default: the checkpoint's own."}
    )
    smooth_neighbours: int = field(
        default=0,
        metadata={
            "help": "Average each vector with those of its N nearest documents, by its cosine and by words, "
            "among all, test documents included (transductive), as neighbour_distillation's targets are; 0: no."
        },
    )
    dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", metadata={"help": "Of the matrix products. auto: bfloat16 where the hardware has it."}
    )
    embedding_tokens: int | None = field(
        default=None,
        metadata={"help": "Texts x longest text of one forward pass: speed and memory. Default: 2048 (GPU 16384)."},
    )

    def __post_init__(self) -> None:
        if self.max_seq_length is not None and self.max_seq_length < 3:
            raise ValueError(f"--max_seq_length is {self.max_seq_length}: a token needs room beside the special ones.")
        if self.smooth_neighbours < 0:
            raise ValueError(f"--smooth_neighbours is {self.smooth_neighbours}: expected 0 (none) or more.")
        if self.embedding_tokens is not None and self.embedding_tokens < 1:
            raise ValueError(f"--embedding_tokens is {self.embedding_tokens}: expected 1 or more.")

    def load(self, name: str) -> "SentenceTransformer":
        """`load_encoder` with these options.

        Raises:
            ValueError: naming the encoder, if its pooling cannot be replaced.
        """
        return self._load(name)[0]

    def _load(self, name: str) -> tuple["SentenceTransformer", str | None]:
        """The encoder, and the pooling that it brought where --override_pooling replaced it."""
        from docsplit.embedding.loading import load_encoder, replace_pooling

        model = load_encoder(name, self.pooling, self.max_seq_length)
        if self.override_pooling is None:
            return model, None
        try:
            return model, replace_pooling(model, self.override_pooling)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def resolve_dtype(self, device: "torch.device") -> "torch.dtype":
        """Of the matrix products on this device."""
        import torch

        from docsplit.runtime.launching import default_dtype

        return default_dtype(device) if self.dtype == "auto" else getattr(torch, self.dtype)

    def embed(
        self, model: "SentenceTransformer", texts: Sequence[str], cached: bool = True, show_progress: bool = False
    ) -> tuple[np.ndarray, float]:
        """`embed_documents` with these options."""
        from docsplit.embedding.encode import embed_documents
        from docsplit.runtime.files import cache_directory

        return embed_documents(
            model,
            texts,
            prompt=self.prompt,
            long_documents=self.long_documents,
            dtype=self.resolve_dtype(model.device),
            micro_batch_tokens=self.embedding_tokens,
            cache_dir=cache_directory() if cached else None,
            show_progress=show_progress,
        )

    def check(self, name: str, texts: Sequence[str]) -> None:
        """Load an encoder, or all of a group, and embed a few texts: what cannot work fails before any long work.

        Raises:
            ValueError: naming the encoder.
        """
        lengths = set()
        for member in members_of(name):
            model, brought = self._load(member)
            lengths.add(model.max_seq_length)
            if brought is not None:
                logger.warning(
                    f"{member} brings {brought} pooling; {self.override_pooling} is used (--override_pooling)."
                )
            try:
                self.embed(model, texts, cached=False)
            except ValueError as error:
                raise ValueError(f"{member}: {error}") from error
        if len(lengths) > 1:
            shown = " and ".join(map(str, sorted(lengths, key=str)))
            logger.warning(f"The encoders of {name} read {shown} tokens: --max_seq_length sets one length for all.")

    def embed_parts(
        self, name: str, parts: dict[str, list[str]], show_progress: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """`embed_all` of the texts of all parts, `test` among them: an array for each, and what a row says of them."""
        texts = [text for texts in parts.values() for text in texts]
        embeddings, info = self.embed_all(name, texts, show_progress, test_texts=parts["test"])
        ends = np.cumsum([len(texts) for texts in parts.values()])
        return dict(zip(parts, np.split(embeddings, ends[:-1]))), info

    def embed_all(
        self, name: str, texts: Sequence[str], show_progress: bool, test_texts: Sequence[str] = ()
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Embed each distinct text once.

        Args:
            test_texts: those that results are measured on: of how many was the encoder pretrained?

        Returns: (len(texts), H) float32, and what a row of results says about them.
        """
        from docsplit.embedding.graphs import is_graph_encoder
        from docsplit.embedding.loading import describe_encoder, resolve_prompt
        from docsplit.embedding.neighbours import smooth_texts
        from docsplit.embedding.overlap import contamination

        model, brought = self._load(name)
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        logger.info(f"Embedding {len(rows):,} texts with {name} on {model.device}")
        embeddings, seconds = self.embed(model, list(rows), show_progress=show_progress)
        dtype = str(self.resolve_dtype(model.device)).removeprefix("torch.")
        read = "passages" if is_graph_encoder(model) else self.long_documents
        info = {"long_documents": read, "dtype": dtype, "embedding_seconds": seconds}
        info |= {"prompt": resolve_prompt(model, self.prompt), **contamination(name, test_texts)}
        info["smooth_neighbours"] = self.smooth_neighbours
        if brought is not None:
            info["pooling_of_checkpoint"] = brought
        if self.smooth_neighbours:
            embeddings = smooth_texts(list(rows), embeddings, self.smooth_neighbours)
        return embeddings[[rows[text] for text in texts]], describe_encoder(model) | info

    def embed_queries(
        self, name: str, queries: Sequence[str], prompt: str | None, show_progress: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Queries as the encoder wants them (`docsplit.embedding.queries`), (Q, H) float32, and what a row says."""
        from docsplit.embedding.queries import embed_queries
        from docsplit.runtime.files import cache_directory

        model, _ = self._load(name)
        vectors, own = embed_queries(
            model,
            queries,
            prompt=prompt,
            dtype=self.resolve_dtype(model.device),
            micro_batch_tokens=self.embedding_tokens,
            cache_dir=cache_directory(),
            show_progress=show_progress,
        )
        return vectors, own


def members_of(name: str) -> list[str]:
    """The encoders of an argument: PATH or NAME=PATH, or one a pretraining seed, PATH,PATH or NAME=PATH,PATH.

    What exists under the whole name is one encoder, and so is a name without a comma or NAME=.

    Raises:
        ValueError: if a member is empty or named twice, or is no encoder, or NAME has a comma.
    """
    stated = re.match(r"[^/\\,=]+=", name)
    if Path(name).exists() or ("," not in name and not stated):
        return [name]
    members = name.split(",")
    if re.match(r"[^/\\,=]+,[^/\\=]*=", name) and not any(Path(member).exists() for member in members):
        raise ValueError(f"{name!r}: a comma stands between encoders, so NAME cannot have one.")
    if stated and not all(Path(member).exists() for member in members):
        members = name[stated.end() :].split(",")
    distinct = {Path(member).resolve() if Path(member).exists() else member for member in members}
    if "" in members or len(distinct) < len(members) or "tfidf" in members:
        raise ValueError(
            f"{name!r} should be NAME=PATH, or encoders from several pretraining seeds, PATH,PATH or NAME=PATH,PATH: "
            "each once, none empty, and without tfidf, which has no seeds."
        )
    return members


@dataclass
class ComparisonArguments:
    """How often, and who hears of it."""

    num_seeds: int = field(default=3, metadata={"help": "Trainings of a head on the full data."})
    seed: int = field(
        default=0,
        metadata={"help": "Of splits that are made here, draws and trainings; of python_docs never of the split."},
    )
    data_name: str | None = field(
        default=None,
        metadata={"help": "How results and cards call the data. Default: by the Hub's name, or those of the files."},
    )
    push_results: bool = field(
        default=False,
        metadata={
            "help": "Add the tables to the cards of the models that this project made: in their folders, and on the "
            "Hub if they are there."
        },
    )

    def __post_init__(self) -> None:
        if self.num_seeds < 1:
            raise ValueError(f"--num_seeds is {self.num_seeds}: expected 1 or more.")
