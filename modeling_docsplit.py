"""DocSplit: a masked language model trained so that two halves of a document get similar embeddings.

`DocSplitForContrastivePretraining` wraps any `AutoModelForMaskedLM`, or an encoder without that head: views to vectors
to loss. A batch holds B documents and two views of each. An objective compares their vectors (InfoNCE with in-batch
negatives in DocSplit, sections 2.1 and 4.1, and SimCSE, equation 1), and with a head a masked-LM loss on separately
masked copies is added. The views go through the encoder in micro-batches (`docsplit.modeling.encoding`).

The file needs torch and transformers, and imports `docsplit.modeling` alone. `save_pretrained` writes the
encoder in its native format: `AutoModel`, `AutoModelForMaskedLM` and `SentenceTransformer` load it without this file.
(A Longformer needs its `global_attention_mask` there, and `trust_remote_code=True` in sentence-transformers.)
"""

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from docsplit.modeling import encoding, pretrained, saving
from docsplit.modeling.distributed import gather_counts
from docsplit.modeling.encoding import Encoded, RowBatch, lay_out
from docsplit.modeling.families.table import family_of
from docsplit.modeling.objectives.base import ObjectiveOutput
from docsplit.modeling.objectives.table import OBJECTIVES, option_names
from docsplit.modeling.packing import Packing, compile_encoders, pack_encoders
from docsplit.modeling.vectors import add_dense, finish


@dataclass
class DocSplitOutput(ModelOutput):
    """The result of `DocSplitForContrastivePretraining.forward`; losses and counts are scalars.

    With several processes each loss is scaled so that its mean over the processes is the value over the global batch.
    """

    loss: Tensor | None = None
    contrastive_loss: Tensor | None = None
    mlm_loss: Tensor | None = None
    embeddings: Tensor | None = None  # (B, V, H), normalised only if the start's are; None without contrast
    num_masked_negatives: Tensor | None = None  # pairs left out because both texts are the same document
    num_computed_tokens: int | None = None  # tokens of the micro-batches, padding included, one forward pass
    objective_parts: dict[str, Tensor] | None = None  # of the contrastive loss, where the objective names any
    objective_histograms: dict[str, Tensor] | None = None  # counts (K,) of this step, likewise


def _freeze_unused_parameters(encoder: PreTrainedModel, mlm: bool) -> None:
    """Freeze poolers, and the MLM head where there is no MLM loss: DDP waits for each trained parameter's gradient."""
    base = {id(parameter): name for name, parameter in encoder.base_model.named_parameters()}
    for parameter in encoder.parameters():
        name = base.get(id(parameter))
        if "pooler." in (name or "") or (name is None and not mlm):
            parameter.requires_grad_(False)


class DocSplitForContrastivePretraining(PreTrainedModel):
    """Contrastive pretraining of any masked language model on two views of each document.

    Use `from_pretrained(name_or_path)` to start from a checkpoint and `DocSplitForContrastivePretraining(config)` to
    start from nothing. A start that is a SentenceTransformer stays one, with its pooling, Dense layers, length,
    prompts, normalisation, similarity and dtype. Keyword settings override those of the checkpoint and are saved with
    it: `pooling`, `max_seq_length`, `objective` (a name in `docsplit.modeling.objectives.table`) and its options,
    `contrastive_weight`, `mlm_weight`. A checkpoint is the encoder, and training state beside it.

    Attributes:
        micro_batch_tokens: bound on rows x longest row of one forward pass of the encoder; None encodes all views of
            the batch at once. Changes speed and memory, never the loss.
        cache_gradients: keep the activations of one micro-batch only and recompute the others in the backward pass.
        packing: how micro-batches are packed without padding, after `pack_sequences`; None: they are padded.
        training_state: how what belongs to the weights stands, `docsplit.modeling.saving.TrainingState`.
    """

    config_class = PreTrainedConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    # Trainer must divide the loss, a mean, by the accumulation steps: not so if `forward` took **kwargs. Nor may an
    # argument of it have "label" in its name, for `eval_loss` to appear.
    accepts_loss_kwargs = False

    def __init__(self, config: PreTrainedConfig, encoder: PreTrainedModel | None = None, **settings: Any):
        if encoder is None:  # the settings are written into the config: not into the one of the caller
            encoder = family_of(config).new_encoder(copy.deepcopy(config))
        super().__init__(encoder.config)
        self.encoder = encoder
        self.config.docsplit = settings = pretrained.checked_settings(encoder.config, settings)
        ignored = ("num_masked_negatives", "num_computed_tokens", "objective_parts", "objective_histograms")
        self.config.keys_to_ignore_at_inference = ["embeddings", *ignored]
        self.micro_batch_tokens: int | None = None
        self.cache_gradients = False
        self.packing: Packing | None = None
        self.recomputes_layers = False
        self.lora_config: Any = None
        self.start_pooler: dict[str, Tensor] = {}  # of the checkpoint, for which a masked language model has no place
        self.training_state: saving.TrainingState = "fresh"
        self.first_batch = encoding.FirstBatch()
        tied = getattr(encoder, "all_tied_weights_keys", None) or {}
        self.all_tied_weights_keys = {f"encoder.{key}": f"encoder.{value}" for key, value in tied.items()}
        _freeze_unused_parameters(encoder, mlm=settings["mlm_weight"] != 0)
        add_dense(encoder.base_model, settings)
        family_of(encoder.config).patch_forward(encoder.base_model)

        objective, names = OBJECTIVES[settings["objective"]], option_names(settings["objective"])
        self.objective = objective(objective.Options(**{name: settings[name] for name in names}), encoder.base_model)
        self._ddp_params_and_buffers_to_ignore = [f"objective.{name}" for name in self.objective.alike]
        self.register_load_state_dict_pre_hook(saving.accept_released_weights)
        self.register_load_state_dict_post_hook(saving.raise_on_missing_keys)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load an encoder from the Hub or a directory, in float32; settings and `from_pretrained` options as keywords.

        A checkpoint without a masked-LM head gives the encoder alone, and `mlm_weight` is 0, which is logged;
        `new_mlm_head=True` makes a new head. The files of a SentenceTransformer come before the defaults.

        Raises:
            ValueError: if there is no encoder, or one that cannot be trained here as it is, naming why.
        """
        name = pretrained_model_name_or_path
        settings = {name: kwargs.pop(name) for name in pretrained.setting_names() if name in kwargs}
        new_mlm_head = kwargs.pop("new_mlm_head", False)
        config = pretrained.read_start(name, settings, **kwargs)
        start = pretrained.load_start(name, *args, of_start=config, new_mlm_head=new_mlm_head, **kwargs)
        settings = pretrained.settle(start, name, config, settings)
        model = cls(start.encoder.config, start.encoder, **settings)
        model.start_pooler = start.pooler
        if new_mlm_head and not model.config.docsplit["mlm_weight"]:
            raise ValueError("--new_mlm_head makes a head that mlm_weight 0 never trains: give --mlm_weight, or none.")
        return model

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | Path, state_dict: dict[str, Tensor] | None = None, **kwargs: Any
    ) -> None:
        """Write the encoder in its native format, what SentenceTransformer needs, and the training state.

        Raises:
            FloatingPointError: if a weight is not finite, before anything is written or removed.
        """
        if kwargs.get("push_to_hub"):
            raise ValueError("save_pretrained(push_to_hub=True) would upload half a checkpoint: call push_to_hub().")
        directory, released = Path(save_directory), None
        if self.lora_config is not None:
            released = saving.merge_lora(self.encoder)
        elif state_dict is not None:
            prefix = saving.ENCODER
            released = {key.removeprefix(prefix): v for key, v in state_dict.items() if key.startswith(prefix)}
            if not released:
                raise ValueError(f"No key of this state_dict begins with {prefix!r}: it is not the whole model's.")
        saving.refuse_not_finite(self.state_dict() if state_dict is None else state_dict, released)
        saving.save_encoder(directory, self.encoder, released, self.start_pooler, **kwargs)
        if not kwargs.get("is_main_process", True):
            return
        if self.training_state == "missing":  # the best weights were loaded, at the end of a training
            return
        if self.lora_config is not None:
            saving.save_adapter(self.encoder, self.lora_config, directory)
        saving.save_training_state(state_dict or self.state_dict(), directory)

    def load_training_state(self, directory: str | Path) -> None:
        """Load what belongs to the weights, if any, before `Trainer.train(resume_from_checkpoint=directory)`.

        Trainer restores the encoder, but does not tell the model where from.

        Raises:
            FileNotFoundError: if the checkpoint has none although this model needs it.
            RuntimeError: if it does not fit.
        """
        if self.lora_config is not None:
            saving.load_adapter(self.encoder, Path(directory))
            self.training_state = "loaded"
        if self.objective.state_dict():
            saving.load_training_state(self, Path(directory))
            self.training_state = "loaded"

    def get_input_embeddings(self) -> nn.Module:
        """Return the encoder's input embeddings."""
        return self.encoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """Return the encoder's MLM head."""
        return self.encoder.get_output_embeddings()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the encoder with `torch.compile`, for all lengths at once, and leave the code around it.

        After `pack_sequences` it is compiled for packs, which get one length, and reads padded rows as before.
        """
        self.packing = compile_encoders(self._token_encoders(), self.packing, *args, **kwargs)

    def pack_sequences(self, dtype: torch.dtype = torch.float32) -> None:
        """Put the rows of a micro-batch into one row, without padding; see `docsplit.modeling.packing`.

        Losses and gradients stay, but for the dropout of attention weights, which CUDA's packed attention has not.

        Args:
            dtype: of matrix products, under autocast.

        Raises:
            ValueError: if the encoder or the device cannot, naming why.
        """
        self.packing = pack_encoders(self._token_encoders(), self.config.docsplit["max_seq_length"], dtype)

    def _token_encoders(self) -> list[Any]:
        encoders = self.encoder.base_model, *self.objective.further_encoders()
        return [family_of(encoder.config).token_encoder(encoder) for encoder in encoders]

    def add_lora(self, rank: int) -> None:
        """Train low-rank updates of the encoder's matrices only (LoRA, section 4.1); see `docsplit.modeling.saving`.

        To resume, start from the same weights, call this and then `load_training_state`.

        Raises:
            ValueError: with a second encoder, whose weights would be all that learns.
        """
        if self.objective.further_encoders():
            raise ValueError(f"LoRA does not go with the second encoder of {self.config.docsplit['objective']}.")
        self.lora_config = saving.inject_lora(self.encoder, rank)

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        """Recompute layer by layer in the backward pass, for views too long for the memory; transformers calls it.

        Raises:
            ValueError: for an objective without dropout: transformers does so in training mode only, which has it.
        """
        if enable and not self.objective.has_dropout:
            objective = self.config.docsplit["objective"]
            raise ValueError(f"--gradient_checkpointing does not go with {objective}: use --cache_gradients.")
        super()._set_gradient_checkpointing(enable, *args, **kwargs)
        self.recomputes_layers = enable

    def train(self, mode: bool = True) -> Any:
        """Switch dropout on or off; for an objective without it the encoder stays in eval mode."""
        super().train(mode)
        if not self.objective.has_dropout:
            self.encoder.eval()
        return self

    def forward(  # noqa: PLR0913 (what a batch holds)
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        mlm_input_ids: Tensor | None = None,
        mlm_targets: Tensor | None = None,
        document_ids: Tensor | None = None,
        rows: Mapping[str, Any] | None = None,
        return_loss: bool = True,
        relevant_ids: Tensor | None = None,
        same_text: bool = False,
        host: Mapping[str, np.ndarray] | None = None,
    ) -> DocSplitOutput:
        """Encode both views of each document and compare them; or queries and their documents.

        Args:
            input_ids: (B, 2, T), the two views of B documents, padded on the right; with `rows` (R, T). With
                `relevant_ids` (B, V, T): a query, a document that is relevant to it, and V - 2 that are not.
            attention_mask: of the same shape, 1 for tokens and 0 for padding.
            mlm_input_ids: of the same shape, copies with masked tokens. Needed unless `mlm_weight` is 0.
            mlm_targets: of the same shape, the original ids at masked positions and -100 elsewhere.
            document_ids: (B,) int64, equal for equal documents: those never count as each other's negatives.
            rows: for an encoder that combines rows to documents, the fields of `docsplit.modeling.encoding.Rows`.
            return_loss: False gives the embeddings alone.
            relevant_ids: (B, R) of queries, `docsplit.modeling.distributed.gather_queries`; document_ids: (B, V - 1).
            same_text: both views of each document are the same text.
            host: lengths and places of masked tokens, as `lay_out` takes them, and `drawn`: a GPU need not be asked.

        Raises:
            ValueError: for views above `max_seq_length`, MLM inputs that are missing; as `Family.check_recomputation`.
            RuntimeError: under DataParallel, which would split the negatives; in training, if a checkpoint was loaded
                without its training state.
        """
        self._check_can_run()
        self.first_batch.note((host or {}).get("drawn") if self.training else None)
        weights = {part: self.config.docsplit[f"{part}_weight"] for part in ("contrastive", "mlm")}
        contrastive, mlm = not return_loss or weights["contrastive"] != 0, return_loss and weights["mlm"] != 0
        if mlm and (mlm_input_ids is None or mlm_targets is None):
            missing = f"mlm_weight is {weights['mlm']} but the batch has no mlm_input_ids and mlm_targets: "
            raise ValueError(f"{missing}make the collator with mlm=True, or the model with mlm_weight=0.")

        # Lay out the rows of all views; a text that is both views has one vector where nothing is drawn or masked
        tensors = (input_ids if contrastive else None, *((mlm_input_ids, mlm_targets) if mlm else (None, None)))
        batch = lay_out(attention_mask, rows, *tensors, host=host)
        batch.refuse_longer_than(self.config.docsplit["max_seq_length"])
        batch.views_are_one = same_text and not (mlm or self.objective.has_dropout)
        counts = gather_counts(batch.num_documents, batch.num_targets, input_ids.device) if return_loss else []

        # Encode them: the objective says which encoder reads which view
        encoded, base_model, output = Encoded(), self.encoder.base_model, DocSplitOutput()
        encode = functools.partial(self._encode, batch, encoded)
        compares = return_loss and contrastive
        output.embeddings = self.objective.encode(encode, base_model) if compares else encode(base_model)
        output.num_computed_tokens = encoded.num_computed_tokens
        if not return_loss:
            return output

        # Compare the documents of all processes
        losses = []
        if output.embeddings is not None:
            of_queries = () if relevant_ids is None else (relevant_ids,)
            compared = self.objective(output.embeddings, document_ids, [size for size, _ in counts], *of_queries)
            if isinstance(compared, Tensor):
                compared = ObjectiveOutput(compared)
            output.contrastive_loss, masked = compared.loss, compared.num_masked_negatives
            output.num_masked_negatives = input_ids.new_zeros(()) if masked is None else masked
            output.objective_parts, output.objective_histograms = compared.parts or None, compared.histograms or None
            losses.append(weights["contrastive"] * output.contrastive_loss)
        # Score the predicted tokens, a mean over those of all processes
        if mlm:
            num_targets = max(sum(targets for _, targets in counts), 1)
            output.mlm_loss = torch.stack(encoded.mlm_sums).sum() * (len(counts) / num_targets)
            losses.append(weights["mlm"] * output.mlm_loss)
        output.loss = torch.stack(losses).sum()
        return output

    def _check_can_run(self) -> None:
        if getattr(self, "_is_replica", False):
            problem = "DataParallel would split the negatives among GPUs: start with `accelerate launch` or `torchrun`"
            raise RuntimeError(f"{problem}, or choose one GPU with CUDA_VISIBLE_DEVICES=0.")
        family_of(self.config).check_recomputation(self.recomputes_layers, self.cache_gradients)
        if self.training and self.training_state == "missing":
            raise RuntimeError(
                "The weights were loaded, but not what belongs to them (a second encoder, a queue, an adapter): call "
                "model.load_training_state(checkpoint) before Trainer.train(resume_from_checkpoint=checkpoint)."
            )

    def _encode(self, batch: RowBatch, encoded: Encoded, base_model: Any, view: int | None = None) -> Any:
        """Encode the rows of all views to (B, V, H), or of one to (B, H); note MLM losses and tokens."""
        # Choose the rows: the first view stands for both where they are one
        is_pair = view is None and batch.views_are_one
        chosen = batch.rows_of(0 if is_pair else view)

        # Encode micro-batches; with cached gradients each is computed again in the backward pass
        computes_again = self.cache_gradients and torch.is_grad_enabled()
        run = encoding.encode_and_compute_again if computes_again else encoding.encode_micro_batch
        vectors_of, order = list[Any](), list[Any]()
        multiple, pooling = family_of(base_model.config).length_multiple(base_model), self.config.docsplit["pooling"]
        for places, part in batch.micro_batches(chosen, self.micro_batch_tokens, multiple, self.packing):
            vectors, mlm_sum = run(self.encoder, base_model, batch, part, pooling)
            vectors_of.append(vectors)
            order.append(places)
            encoded.mlm_sums += [] if mlm_sum is None else [mlm_sum]
            encoded.num_computed_tokens += (2 if is_pair else 1) * part.num_tokens  # both views count
        if batch.input_ids is None:
            return None

        # Put the vectors back in order, and make documents of rows
        vectors = torch.cat(vectors_of)
        vectors = vectors[encoding.to_device([np.concatenate(order).argsort()], vectors.device)[0]]
        if hasattr(base_model, "combine"):
            vectors = base_model.combine(vectors, batch.rows.select(chosen))
        vectors = finish(base_model, vectors, self.config.docsplit)
        if is_pair:
            return torch.stack([vectors, vectors], dim=1)
        return vectors if view is not None else vectors.unflatten(0, (batch.num_documents, -1))
