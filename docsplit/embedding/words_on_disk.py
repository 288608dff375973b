"""Folders that words are kept in: a static encoder, or an encoder with words. SentenceTransformer loads both."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sentence_transformers.models import Normalize

from docsplit.embedding.project_modules import with_words
from docsplit.modeling.encoder_with_words import Words, token_count
from docsplit.modeling.sentence_transformers_files import MODEL_FILE, MODULES
from docsplit.runtime.files import JsonObject

STATIC_MODULES = (("StaticEmbedding", ""), ("Normalize", "1_Normalize"))


def save_static(words: Words, folder: Path) -> None:
    """Write the words alone as a static encoder: sentence-transformers and model2vec load it, without this project.

    The vector of a text is the mean of its token vectors, of length one; of a text without any of them it is zero.

    Raises:
        ValueError: for words that dampen counts, which no mean does.
    """
    if words.sublinear:
        raise ValueError("A static encoder is a mean of token vectors: fit its words with plain counts.")
    table = torch.zeros(token_count(words.tokenizer), words.vectors().shape[1])
    table[words.pieces] = words.vectors().detach().cpu()
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (name, path) in enumerate(STATIC_MODULES)
    ]
    dimension: JsonObject = {"model_type": "model2vec", "normalize": True, "hidden_dim": table.shape[1]}
    files: dict[str, Any] = {
        MODULES: modules,
        MODEL_FILE: {"model_type": "SentenceTransformer", "prompts": {}, "similarity_fn_name": "cosine"},
        "config.json": dimension,
    }
    (folder / "1_Normalize").mkdir()
    Normalize().save(str(folder / "1_Normalize"))  # the Hub keeps no empty folder
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    words.tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"embeddings": table}, folder / "model.safetensors", metadata={"format": "pt"})


def save_with_words(model: Any, words: Words, weight: float, folder: Path) -> None:
    """Write an encoder with words; `AutoModel` loads the plain encoder from the same folder."""
    with_words(model, words, weight).save(str(folder), create_model_card=False)
