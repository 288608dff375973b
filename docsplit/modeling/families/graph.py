"""Train and save documents as graphs of passages (`modeling_graph_document`)."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import modeling_graph_document  # which registers its classes: `AutoModel` needs no remote code for them here
from docsplit.modeling.families.base import Family
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel

PASSAGE_LENGTH = 256  # tokens of a passage, unless something else is given: 100 words are about 135 of RoBERTa's
_PACKAGE = Path(__file__).parents[2]
PASSAGES_FILE = _PACKAGE / "data" / "passages.py"

# What --config_overrides may say of the graph. (Words of a passage are an option of the documents, --passage_words.)
GRAPH_OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(GraphDocumentConfig.__init__).parameters.items()
    if name not in ("self", "passage_encoder", "passage_words") and parameter.kind is not parameter.VAR_KEYWORD
)
WITHOUT_WEIGHTS = ("graph_kind", "graph_feature_dropout", "graph_attention_dropout", "graph_queries", "max_passages")
NOT_FOR_PASSAGES = ("longformer", "big_bird")  # their attention is for texts of thousands of tokens


class GraphDocuments(Family):
    """A passage encoder and graph attention over its vectors."""

    def new_encoder(self, config: Any) -> GraphDocumentModel:
        """Make a random model; it has no masked-LM head."""
        return GraphDocumentModel(config)

    def make_config(self, inner: Any, options: Mapping[str, Any]) -> GraphDocumentConfig:
        """Make the configuration of a new graph on top of a passage encoder's.

        Raises:
            ValueError: for a passage encoder that is made for long texts, or an option that cannot be.
        """
        if inner.model_type in NOT_FOR_PASSAGES:
            raise ValueError(
                f"A {inner.model_type} is no passage encoder: passages have about a hundred words. Choose an "
                "encoder with full attention, such as roberta-base."
            )
        return GraphDocumentConfig(inner, **options)

    def build_on(self, encoder: Any, options: Mapping[str, Any]) -> GraphDocumentModel:
        """Make a model that is new but for its passage encoder, a start without its head.

        Raises:
            ValueError: as `make_config`.
        """
        config = self.make_config(encoder.config, options)
        encoder.config.name_or_path = ""  # where it came from is in the record of the run
        vars(encoder.config).pop("docsplit", None)  # settings of an embedding that is no more
        return GraphDocumentModel(config, encoder)

    def override(self, name: Any, config: Any, options: Mapping[str, Any]) -> None:
        """Change the graph of a checkpoint before its weights are loaded.

        Raises:
            ValueError: for an option that its weights do not allow.
        """
        for key, value in options.items():
            if key not in WITHOUT_WEIGHTS and value != getattr(config, key):
                raise ValueError(
                    f"{name} was made with {key} {getattr(config, key)}, and has weights for that: leave out "
                    f"{key}={value}. A checkpoint's {', '.join(WITHOUT_WEIGHTS)} can be changed."
                )
            setattr(config, key, value)
        config.check()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse masked LM.

        Raises:
            ValueError: naming the option.
        """
        if settings["mlm_weight"]:
            raise ValueError(
                "A graph document model has no masked-LM head: leave out --mlm_weight (in Python mlm_weight=0)."
            )

    def reads(self, config: Any, tokens: str) -> str:
        """Say how much of a document is read, in passages."""
        read, most = "a document of any length, read in passages", config.max_passages
        read = f"the first {most} passages of a document," if most else read
        return f"{read} of about {config.passage_words} words ({tokens} each),"

    def layers(self, config: Any) -> str:
        """Say how many layers of graph attention there are, and what is not the paper's: means of passages."""
        passages = "the means of its passages" if config.passage_pooling == "mean" else "its passages"
        if not config.graph_layers:
            return f", which averages {passages},"
        return f", with {config.graph_layers} of graph attention over {passages} (`{config.graph_kind}` graph),"

    def with_transformers(self, address: str) -> str:
        """Describe the inputs and outputs of the model's forward."""
        return (
            f"`AutoModel.from_pretrained({address}, trust_remote_code=True)`: its `forward` takes the passages of "
            "documents and gives their `embeddings`, and attention weights with `output_attentions=True`. "
        )


GRAPH_DOCUMENTS = GraphDocuments(
    rows="passages",
    default_settings={"mlm_weight": 0.0, "max_seq_length": PASSAGE_LENGTH},
    inner_encoder="passage_encoder",
    built_on="bert",
    config_options=GRAPH_OPTIONS,
    module="graph_document_transformer.GraphDocumentTransformer",
    code={
        "modeling_graph_document.py": (Path(str(modeling_graph_document.__file__)),),
        "graph_document_transformer.py": (PASSAGES_FILE, Path(__file__).parent / "graph_document_transformer.py"),
    },
    paper="Xu et al.: Contrastive Document Representation Learning with Graph Attention Networks. EMNLP 2021.",
    without_lora="a graph document model, whose graph begins as random",
)
