"""A graph document model for SentenceTransformer: whole texts are cut into passages, and these become one vector.

A copy of this file, after that of `docsplit/data/passages.py`, is in each checkpoint of such a model:
`SentenceTransformer(path, trust_remote_code=True)`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import InputModule
from transformers import AutoModel, AutoTokenizer

from docsplit.data.passages import Passage, clean_text, to_passages

Features = dict[str, Any]  # what modules of SentenceTransformer hand on, by name


class GraphDocumentTransformer(InputModule):
    """Turn texts into vectors of documents.

    `encode` and `encode_document` embed a text as the graph of its passages. `encode_query` embeds it as one passage,
    which is cut at `max_seq_length` tokens, as passages are. A prompt stands before each passage.

    Attributes:
        model: a `GraphDocumentModel`.
        max_seq_length: tokens of a passage, special ones included.
        max_passages: passages of a text that are read, the configuration's unless it is set; None: all.
    """

    tokenizer: Any
    config_file_name = "sentence_bert_config.json"
    config_keys = ["max_seq_length"]  # noqa: RUF012

    def __init__(self, model: Any, tokenizer: Any, max_seq_length: int):
        super().__init__()
        self.model, self.tokenizer, self.max_seq_length = model, tokenizer, max_seq_length
        self.max_passages: int | None = model.config.max_passages or None

    @property
    def config(self) -> Any:
        """Return the model's configuration."""
        return self.model.config

    @property
    def processor(self) -> Any:
        """Return the tokenizer."""
        return self.tokenizer

    def passages(self, texts: Sequence[str], are_queries: bool = False) -> list[list[Passage]]:
        """Cut each text into passages; an empty text has an empty one, and a query is one."""
        if are_queries:
            return [[Passage(clean_text(text), 0)] for text in texts]
        words, most = self.config.passage_words, self.max_passages
        return [to_passages(text, words)[:most] or [Passage("", 0)] for text in texts]

    def preprocess(self, inputs: Any, prompt: str | None = None, task: str | None = None, **kwargs: Any) -> Features:
        """Return what `forward` takes: the P passages of D texts, and what they belong to."""
        documents = self.passages(inputs, are_queries=task == "query")
        features = self.tokenizer(
            [(prompt or "") + passage.text for passages in documents for passage in passages],
            truncation=True,
            max_length=self.max_seq_length,
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        return {name: features[name] for name in ("input_ids", "attention_mask")} | rows_of(documents, task == "query")

    def forward(self, features: Features, **kwargs: Any) -> Features:
        """Add `sentence_embedding` (D, H)."""
        names = ("input_ids", "attention_mask", "document", "section", "position", "is_query")
        return features | {"sentence_embedding": self.model(**{name: features[name] for name in names}).embeddings}

    def get_embedding_dimension(self) -> int:
        """Return H."""
        return self.config.hidden_size

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write model, tokenizer and length."""
        self.model.save_pretrained(output_path)
        self.tokenizer.save_pretrained(output_path)
        self.save_config(output_path)

    @classmethod
    def load(  # type: ignore[override]
        cls, model_name_or_path: str, trust_remote_code: bool = False, model_kwargs: Any = None, **kwargs: Any
    ) -> "GraphDocumentTransformer":
        """Load a checkpoint; `kwargs` are those of sentence-transformers."""
        hub: dict[str, Any] = {
            name: kwargs[name] for name in ("token", "revision", "local_files_only") if name in kwargs
        }
        cache = kwargs.get("cache_folder")
        config = cls.load_config(model_name_or_path, cache_folder=cache, **hub)
        hub |= {"cache_dir": cache, "trust_remote_code": trust_remote_code}  # a tokenizer reads config.json too
        options = {"output_loading_info": True} | hub | (model_kwargs or {})
        model, info = AutoModel.from_pretrained(model_name_or_path, **options)
        if missing := sorted(info["missing_keys"]):
            raise ValueError(
                f"{str(model_name_or_path)!r} lacks {len(missing)} weights of its own architecture, such as "
                f"{missing[:3]}: they would be random. Is it the checkpoint of another model?"
            )
        tokenizer = AutoTokenizer.from_pretrained(model_name_or_path, **hub)
        return cls(model, tokenizer, config["max_seq_length"])


def rows_of(documents: Sequence[Sequence[Passage]], are_queries: bool = False) -> dict[str, torch.Tensor]:
    """Give numbers to the passages of D texts, (P,) each: text, section, position, and whether it is a query."""
    document = [number for number, passages in enumerate(documents) for _ in passages]
    section = [passage.section for passages in documents for passage in passages]
    position = [place for passages in documents for place in range(len(passages))]
    rows = {name: torch.tensor(values) for name, values in (("document", document), ("section", section))}
    return rows | {"position": torch.tensor(position), "is_query": torch.full((len(document),), are_queries)}
