"""All that is particular to documents as graphs of passages (`modeling_graph_document`), in training and on disk."""

import inspect
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import modeling_graph_document  # which registers its classes: `AutoModel` needs no remote code for them here
from docsplit.runtime.files import write_text
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel

PASSAGE_LENGTH = 256  # tokens of a passage, unless something else is given: 100 words are about 135 of RoBERTa's

# What --config_overrides may say of the graph. (Words of a passage are an option of the documents, --passage_words.)
GRAPH_SETTINGS = tuple(
    name
    for name, parameter in inspect.signature(GraphDocumentConfig.__init__).parameters.items()
    if name not in ("self", "passage_encoder", "passage_words") and parameter.kind is not parameter.VAR_KEYWORD
)
WITHOUT_WEIGHTS = ("graph_kind", "graph_feature_dropout", "graph_attention_dropout", "graph_queries")

# With which SentenceTransformer loads a graph document model, and what that file is made of: how a text is cut into
# passages, and the module itself, less the line that imports the first from this package.
GRAPH_MODULE = "graph_document_transformer.GraphDocumentTransformer"
GRAPH_FILES = ("modeling_graph_document.py", "graph_document_transformer.py")
_PACKAGE = Path(__file__).parents[2]
PASSAGES_FILE = _PACKAGE / "data" / "passages.py"
_SOURCES = (PASSAGES_FILE, _PACKAGE / "modeling" / "families" / "graph_document_transformer.py")
_IMPORT = "from docsplit.data.passages import Passage, clean_text, to_passages\n"

NOT_FOR_PASSAGES = ("longformer", "big_bird")  # their attention is for texts of thousands of tokens


def is_graph(config: Any) -> bool:
    """Whether this is the configuration of a graph document model."""
    return config.model_type == GraphDocumentConfig.model_type


def token_encoder(base_model: Any) -> Any:
    """What reads tokens: the passage encoder of a graph document model, and any other encoder itself."""
    return base_model.passage_encoder if is_graph(base_model.config) else base_model


def make_graph_config(passage_encoder: Any, settings: Mapping[str, Any]) -> GraphDocumentConfig:
    """The configuration of a new graph on top of a passage encoder's.

    Raises:
        ValueError: for a passage encoder that is made for long texts, or a setting that cannot be.
    """
    if passage_encoder.model_type in NOT_FOR_PASSAGES:
        raise ValueError(
            f"A {passage_encoder.model_type} is no passage encoder: passages have about a hundred words. Choose an "
            "encoder with full attention, such as roberta-base."
        )
    return GraphDocumentConfig(passage_encoder, **settings)


def add_graph(encoder: Any, settings: Mapping[str, Any]) -> GraphDocumentModel:
    """A graph document model, new but for the passage encoder, which is a start without its head.

    Raises:
        ValueError: as `make_graph_config`.
    """
    config = make_graph_config(encoder.config, settings)
    encoder.config.name_or_path = ""  # where it came from is in the record of the run
    vars(encoder.config).pop("docsplit", None)  # settings of an embedding that is no more
    return GraphDocumentModel(config, encoder)


def override_graph(name: Any, config: Any, settings: Mapping[str, Any]) -> None:
    """Change the graph of a checkpoint, before its weights are loaded.

    Raises:
        ValueError: for a setting that its weights do not allow.
    """
    for key, value in settings.items():
        if key not in WITHOUT_WEIGHTS and value != getattr(config, key):
            raise ValueError(
                f"{name} was made with {key} {getattr(config, key)}, and has weights for that: leave out "
                f"{key}={value}. Of a checkpoint {', '.join(WITHOUT_WEIGHTS)} can be changed."
            )
        setattr(config, key, value)
    config.check()


def is_graph_checkpoint(modules_file: str | None) -> bool:
    """Whether SentenceTransformer would want remote code, which this package has itself.

    Args:
        modules_file: the checkpoint's modules.json, if it has one.
    """
    module = GRAPH_MODULE.rpartition(".")[2]
    return modules_file is not None and module in Path(modules_file).read_text(encoding="utf-8")


def write_graph_code(directory: Path) -> None:
    """Copy into a checkpoint the code that other programs load it with."""
    shutil.copy(modeling_graph_document.__file__, directory)
    source = "\n\n".join(path.read_text(encoding="utf-8") for path in _SOURCES)
    assert _IMPORT in source
    write_text(directory / GRAPH_FILES[1], source.replace(_IMPORT, ""))
