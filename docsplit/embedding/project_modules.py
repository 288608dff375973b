"""The modules of SentenceTransformer that this project has itself.

Folders carry a copy of their code for other programs, which run it with `trust_remote_code=True`. Here the installed
code loads them, and no code of a folder runs.
"""

import contextlib
import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import sentence_transformers
from sentence_transformers.base.modules import Module
from sentence_transformers.util import import_module_class

from docsplit.modeling import encoder_with_words, pretrained
from docsplit.modeling.encoder_with_words import AddWords, EncoderWithWords, Words
from docsplit.modeling.families.table import FAMILIES, family_of
from docsplit.modeling.pretrained import MODEL_FILE, MODULES
from docsplit.runtime.files import JsonObject, write_text

logger = logging.getLogger(__name__)

SETTINGS = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
WORDS_FILE = Path(str(encoder_with_words.__file__))
WITH_WORDS = {f"{WORDS_FILE.stem}.{module.__name__}": module for module in (EncoderWithWords, AddWords)}


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """An encoder with modules of this project, saved with the code that programs without this package load it with.

    It carries its parent's name, because a card shows the class name.
    """

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Save as the parent does, but name the modules as other programs import them, and write their code."""
        super().save(path, *args, **kwargs)
        modules = json.loads((Path(path) / MODULES).read_text(encoding="utf-8"))
        for module in modules:
            module["type"] = portable_type(module["type"])
        write_text(Path(path) / MODULES, json.dumps(modules, indent=2) + "\n")
        for family in FAMILIES.values():
            if family.module in [modules[0]["type"], getattr(self[0], "inner_type", None)]:
                family.write_code(Path(path))
        if words_of(self) is not None:
            write_text(Path(path) / WORDS_FILE.name, WORDS_FILE.read_text(encoding="utf-8"))


def portable_type(name: str) -> str:
    """Return the name of a module's class as modules.json has it: FILE.CLASS for those of this project."""
    return ".".join(name.split(".")[-2:]) if name.startswith("docsplit.") else name


def module_types(name_or_path: str) -> list[str]:
    """Return the types of an encoder's modules, in order; none where there is no modules.json."""
    return [module["type"] for module in pretrained.read_modules(name_or_path, {}) or []]


def has_words(name_or_path: str) -> bool:
    """Whether an encoder adds words to its vectors, by its files."""
    return not WITH_WORDS.keys().isdisjoint(module_types(name_or_path))


def load_with_words(name_or_path: str, device: str | None = None) -> SentenceTransformer:
    """Load an encoder with words by the installed code.

    Raises:
        ValueError: naming what is missing, damaged, or a module neither of sentence-transformers nor of this project.
    """
    entries: list[JsonObject] = pretrained.read_modules(name_or_path, {}) or []
    types = [entry["type"] for entry in entries]
    if not types or [types[0], types[-1]] != list(WITH_WORDS) or not WITH_WORDS.keys().isdisjoint(types[1:-1]):
        raise ValueError(f"{MODULES} has the modules {types}: expected {' first and '.join(WITH_WORDS)} last.")
    first = EncoderWithWords.load(name_or_path, module_class=_module_class)
    modules: list[Any] = [
        first,
        *(_module_class(entry["type"]).load(name_or_path, entry["path"]) for entry in entries[1:-1]),
    ]
    modules.append(AddWords.load(name_or_path, entries[-1]["path"]))
    config: JsonObject = pretrained.read_file(name_or_path, MODEL_FILE, {}) or {}
    settings: JsonObject = {name: config.get(name) for name in SETTINGS}
    model = SentenceTransformer(modules=modules, device=device, **settings)
    _check_width(without_words(model), first.words)
    return model


def load_stock(name_or_path: str, device: str | None = None) -> sentence_transformers.SentenceTransformer:
    """Load an encoder whose modules are all those of sentence-transformers.

    Raises:
        ValueError: naming another module.
    """
    for name in module_types(name_or_path):
        _module_class(name)
    return sentence_transformers.SentenceTransformer(name_or_path, device=device, **pretrained.NO_CODE)


def _module_class(name: str) -> Any:
    """Return the class of a module by its name in modules.json; no code of a folder or another program is run."""
    ours = {family.module: family for family in FAMILIES.values() if family.module}
    if name in ours:
        return ours[name].module_class()
    module_class: Any = None
    if str(name).startswith("sentence_transformers."):
        with contextlib.suppress(ImportError, AttributeError):
            module_class = import_module_class(name)
    if not (isinstance(module_class, type) and issubclass(module_class, Module)):
        raise ValueError(f"The module {name!r} is neither one of sentence-transformers nor of this project.")
    return module_class


def _check_width(plain: Any, words: Words) -> None:
    with plain.truncate_embeddings(None):
        width = plain.get_embedding_dimension()
    if width is not None and words.vectors().shape[1] != width:
        raise ValueError(
            f"The words have vectors of {words.vectors().shape[1]} numbers, the encoder of {width}: fit them again."
        )


def words_of(model: Any) -> Words | None:
    """Return the words that an encoder adds to its vectors; None if it adds none."""
    return model[0].words if isinstance(model[0], EncoderWithWords) else None


def with_words(model: Any, words: Words, weight: float = 1.0) -> SentenceTransformer:
    """Return an encoder with words added to its vectors; the modules are shared, nothing is copied.

    Words that `model` has are left out.

    Raises:
        ValueError: for words of another width than the encoder's vectors.
    """
    plain = without_words(model)
    _check_width(plain, words)
    modules: list[Any] = [EncoderWithWords(plain[0], words, _inner_type(plain[0])), *list(plain)[1:], AddWords(weight)]
    return SentenceTransformer(modules=modules, **_options(plain))


def _inner_type(module: Any) -> str:
    """Return the name that modules.json has for the first module of an encoder."""
    family = family_of(getattr(module, "config", None))
    if family.module and "forward" in vars(getattr(module, "model", family)):
        return family.module  # which attends as `load_encoder` lets this one attend
    return portable_type(f"{type(module).__module__}.{type(module).__name__}")


def weight_of_words(model: Any) -> float | None:
    """Return the weight of the words that an encoder adds; None if it adds none."""
    return None if words_of(model) is None else model[-1].weight


def without_words(model: Any) -> Any:
    """Return the plain encoder of one with words, which shares its modules; another encoder as it is."""
    if words_of(model) is None:
        return model
    return SentenceTransformer(modules=[model[0].inner, *list(model)[1:-1]], **_options(model))


def plain_encoder(model: Any, use: str) -> Any:
    """Return the encoder without words, for a use that words have no part in; the log says so once."""
    if words_of(model) is not None:
        _say_words_are_left_out(use)
    return without_words(model)


@cache
def _say_words_are_left_out(use: str) -> None:
    logger.info(f"{use} is of the plain encoder: the words that are added to its vectors are left out.")


def save_plain(model: Any, folder: Path) -> None:
    """Write an encoder without words, with the code of this project's modules."""
    plain = without_words(model)
    SentenceTransformer(modules=list(plain), **_options(plain)).save(str(folder), create_model_card=False)


def _options(model: Any) -> dict[str, Any]:
    return {"device": str(model.device)} | {name: getattr(model, name) for name in SETTINGS}
