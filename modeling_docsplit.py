"""DocSplit: an encoder trained so that two halves of a document get similar embeddings.

`DocSplitForContrastivePretraining` holds a SentenceTransformer, which turns views into vectors, and a masked-LM head
that shares its encoder, if the checkpoint has one. A batch holds B documents and two views of each. An objective
compares their vectors (InfoNCE with in-batch negatives in DocSplit, sections 2.1 and 4.1, and SimCSE, equation 1), and
with a head a masked-LM loss on separately masked copies is added. The views go through the encoder in micro-batches
(`docsplit.modeling.encoding`).

The file needs torch, transformers and sentence-transformers, and imports `docsplit.modeling` alone. `save_pretrained`
writes the SentenceTransformer: `AutoModel`, `AutoModelForMaskedLM` and `SentenceTransformer` load it without this
file. (A Longformer needs its `global_attention_mask` there, and `trust_remote_code=True` in sentence-transformers.)
"""

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

from docsplit.modeling import checkpoint, encoding, start
from docsplit.modeling.distributed import gather_counts
from docsplit.modeling.encoding import Encoded, RowBatch, finish, lay_out_batch
from docsplit.modeling.families.table import family_of
from docsplit.modeling.objectives.base import ObjectiveOutput
from docsplit.modeling.objectives.table import OBJECTIVES, option_names
from docsplit.modeling.packing import Packing, compile_encoders, pack_encoders


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


class DocSplitForContrastivePretraining(PreTrainedModel):
    """Contrastive pretraining of any SentenceTransformer or `AutoModel` on two views of each document.

    Use `from_pretrained(name_or_path)` to start from a checkpoint and `from_config(config, tokenizer)` to start from
    nothing. A checkpoint is the SentenceTransformer with its pooling, Dense layers, length, prompts, normalisation,
    similarity and dtype, and training state beside it. Keyword settings override those of the checkpoint and are saved
    with it: `objective` (a name in `docsplit.modeling.objectives.table`) and its options, `contrastive_weight`,
    `mlm_weight`.

    Args:
        body: what is trained.
        masked_lm: a masked language model around the encoder of `body`; None: there is no masked-LM loss.

    Attributes:
        encoder: the model of transformers that has weights to train: `masked_lm`, or the encoder of `body` itself.
        micro_batch_tokens: bound on rows x longest row of one forward pass of the encoder; None: the
            `default_training_tokens` of its device. Changes speed and memory, never the loss.
        cache_gradients: keep the activations of one micro-batch only and recompute the others in the backward pass.
        packing: how micro-batches are packed without padding, after `pack_sequences`; None: they are padded.

    Example:
        >>> from datasets import Dataset
        >>> from transformers import AutoTokenizer
        >>> from docsplit import DocSplitCollator, DocSplitForContrastivePretraining
        >>> from docsplit.data.preparation import tokenize
        >>> tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
        >>> model = DocSplitForContrastivePretraining.from_pretrained("bert-base-uncased", pooling="mean")
        >>> texts = ["The ship sails at dawn. The tide turns at noon.", "Mix flour and salt. Heat the oven."]
        >>> documents, _ = tokenize(Dataset.from_dict({"text": texts}), tokenizer)
        >>> batch = DocSplitCollator.for_model(model, tokenizer)(list(documents.with_format("numpy")))
        >>> model(**batch).embeddings.shape[:2]  # documents, views
        torch.Size([2, 2])
    """

    body: Any  # a SentenceTransformer; its weights are those of `encoder` and `after`
    config_class = PreTrainedConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    # Trainer must divide the loss, a mean, by the accumulation steps: not so if `forward` took **kwargs. Nor may an
    # argument of it have "label" in its name, for `eval_loss` to appear.
    accepts_loss_kwargs = False

    def __init__(self, body: start.SentenceTransformer, masked_lm: PreTrainedModel | None = None, **settings: Any):
        base_model: Any = body[0].model
        super().__init__(base_model.config)
        if "similarity" in settings:
            body.similarity_fn_name = settings["similarity"]
        self.config.docsplit = settings = start.checked_settings(base_model.config, settings)
        ignored = ("num_masked_negatives", "num_computed_tokens", "objective_parts", "objective_histograms")
        self.config.keys_to_ignore_at_inference = ["embeddings", *ignored]
        # The weights have one name each: those of the encoder, and those of the modules after it
        self.encoder = base_model if masked_lm is None else masked_lm
        self.after = nn.ModuleList(list(body)[1:])
        object.__setattr__(self, "body", body)
        self.micro_batch_tokens: int | None = None
        self.cache_gradients = False
        self.packing: Packing | None = None
        self.recomputes_layers = False
        self.lora_config: Any = None
        self.first_batch = encoding.FirstBatch()
        tied = getattr(self.encoder, "all_tied_weights_keys", None) or {}
        self.all_tied_weights_keys = {f"encoder.{key}": f"encoder.{value}" for key, value in tied.items()}
        self._freeze_what_has_no_loss()
        family_of(self.config).patch_forward(base_model)

        objective, names = OBJECTIVES[settings["objective"]], option_names(settings["objective"])
        self.objective = objective(objective.Options(**{name: settings[name] for name in names}), body)
        self._ddp_params_and_buffers_to_ignore = [f"objective.{name}" for name in self.objective.alike]
        self.register_load_state_dict_pre_hook(checkpoint.accept_released_weights)
        self.register_load_state_dict_post_hook(checkpoint.raise_on_missing_keys)

    def _freeze_what_has_no_loss(self) -> None:
        """Freeze poolers, a head without a masked-LM loss, and layers without a contrastive one.

        DDP waits for the gradient of each trained parameter.
        """
        settings, base_model = self.config.docsplit, self.body[0].model
        of_base = {id(parameter): name for name, parameter in base_model.named_parameters()}
        for parameter in self.encoder.parameters():
            name = of_base.get(id(parameter))
            if "pooler." in (name or "") or (name is None and not settings["mlm_weight"]):
                parameter.requires_grad_(False)
        self.after.requires_grad_(settings["contrastive_weight"] != 0)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load an encoder from the Hub or a directory, in float32; settings and `from_pretrained` options as keywords.

        A checkpoint without a masked-LM head gives the encoder alone, and `mlm_weight` is 0, which is logged;
        `new_mlm_head=True` makes a new head. `pooling` and `max_seq_length` take the place of the checkpoint's.

        Raises:
            ValueError: if there is no encoder, or one that cannot be trained here as it is, naming why.
        """
        settings = {name: kwargs.pop(name) for name in start.setting_names() if name in kwargs}
        begun = start.load_start(pretrained_model_name_or_path, settings, *args, **kwargs)
        return cls(begun.body, begun.masked_lm, **begun.settings)

    @classmethod
    def from_config(
        cls,
        config: PreTrainedConfig,
        tokenizer: Any,
        pooling: str | None = None,
        max_seq_length: int | None = None,
        **settings: Any,
    ) -> Any:
        """Make a random encoder, with a masked-LM head where its architecture has one.

        Args:
            config: of the encoder.
            tokenizer: that it reads texts with.
            pooling: default `cls`, the DocSplit paper's, or its family's.
            max_seq_length: default 512 tokens, or as many as there are positions for.

        Raises:
            ValueError: for settings that cannot work with this encoder.
        """
        start.checked_settings(config, settings)
        begun = start.new_start(config, tokenizer, pooling, max_seq_length)
        return cls(begun.body, begun.masked_lm, **settings)

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | Path, is_main_process: bool = True, **kwargs: Any
    ) -> None:
        """Write the SentenceTransformer, the head of a masked language model and the training state.

        Raises:
            FloatingPointError: if a weight is not finite, before anything is written or removed.
            ValueError: for a `state_dict`, or a push to the Hub, which `push_to_hub` does.
        """
        if kwargs.get("push_to_hub"):
            raise ValueError("save_pretrained(push_to_hub=True) would upload half a checkpoint: call push_to_hub().")
        if kwargs.get("state_dict") is not None:
            raise ValueError("save_pretrained(state_dict=...) is not supported: load it first, then save.")
        if is_main_process:
            checkpoint.save_checkpoint(self, Path(save_directory))

    def get_input_embeddings(self) -> nn.Module:
        """Return the encoder's input embeddings."""
        return self.encoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """Return the encoder's MLM head."""
        return self.encoder.get_output_embeddings()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Give the encoder, its MLM head and its copies rows for other ids, as `PreTrainedModel` does."""
        rows = self.encoder.resize_token_embeddings(*args, **kwargs)
        copies: Any = self.objective.further_encoders()
        for body in copies:
            before = body[0].model.get_input_embeddings().num_embeddings
            new = body[0].model.resize_token_embeddings(*args, **kwargs).weight.data[before:]
            new.copy_(rows.weight.data[before:])
        return rows

    def add_adapter(self, *args: Any, **kwargs: Any) -> None:
        """Refuse peft's way, by which the updates would not reach a release.

        Raises:
            ValueError: naming `add_lora`.
        """
        raise ValueError("Adapters of peft would not be released: call add_lora(rank), which trains and merges them.")

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the encoder with `torch.compile`, for all lengths at once, and leave the code around it.

        After `pack_sequences` it is compiled for packs, which get one length, and reads padded rows as before.
        """
        self.packing = compile_encoders(self._token_encoders(), self.packing, *args, **kwargs)

    def pack_sequences(self, dtype: torch.dtype = torch.float32) -> None:
        """Put the rows of a micro-batch into one row, without padding; see `docsplit.modeling.packing`.

        Losses and gradients stay, but for the dropout of attention weights, which CUDA's packed attention has not.

        Args:
            dtype: of matrix products, under autocast. On a GPU attention needs 16 bits: `forward` refuses others.

        Raises:
            ValueError: if the encoder or the device cannot, naming why.
        """
        self.packing = pack_encoders(self._token_encoders(), self.body.max_seq_length, dtype)

    def _token_encoders(self) -> list[Any]:
        encoders = [body[0].model for body in (self.body, *self.objective.further_encoders())]
        return [family_of(encoder.config).token_encoder(encoder) for encoder in encoders]

    def add_lora(self, rank: int) -> None:
        """Train low-rank updates of the encoder's matrices only (LoRA, section 4.1).

        To resume, start from the same weights and call this.

        Raises:
            ValueError: with a second encoder, whose weights would be all that learns.
        """
        if self.objective.further_encoders():
            raise ValueError(f"LoRA does not go with the second encoder of {self.config.docsplit['objective']}.")
        self.lora_config = checkpoint.inject_lora(self.encoder, self.body[0].model, rank)

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
            host: lengths and places of masked tokens, as `lay_out_batch` takes them, and `drawn`: no GPU is asked.

        Raises:
            ValueError: for views above `max_seq_length`, MLM inputs that are missing, views that are one text without
                dropout; adapters that `add_lora` did not add; as `Family.check_recomputation`.
            RuntimeError: under DataParallel, which would split the negatives.
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
        batch = lay_out_batch(attention_mask, rows, *tensors, host=host)
        batch.refuse_longer_than(self.body.max_seq_length)
        batch.views_are_one = same_text and not (mlm or self.objective.has_dropout)
        if same_text and contrastive and self.training and self.objective.has_dropout:
            start.refuse_without_dropout(self)
        counts = gather_counts(batch.num_documents, batch.num_targets, input_ids.device) if return_loss else []

        # Encode them: the objective says which encoder reads which view
        encoded, output = Encoded(), DocSplitOutput()
        encode = functools.partial(self._encode, batch, encoded)
        compares = return_loss and contrastive
        output.embeddings = self.objective.encode(encode, self.body) if compares else encode(self.body)
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
        if self.training:
            checkpoint.refuse_adapters_of_others(self)

    def _encode(self, batch: RowBatch, encoded: Encoded, body: Any, view: int | None = None) -> Any:
        """Encode the rows of all views to (B, V, H), or of one to (B, H); note MLM losses and tokens."""
        # Choose the rows: the first view stands for both where they are one
        is_pair = view is None and batch.views_are_one
        chosen = batch.rows_of(0 if is_pair else view)

        # Encode micro-batches; with cached gradients each is computed again in the backward pass
        computes_again = self.cache_gradients and torch.is_grad_enabled()
        run = encoding.encode_and_compute_again if computes_again else encoding.encode_micro_batch
        vectors_of, order = list[Any](), list[Any]()
        base_model = body[0].model
        multiple = family_of(base_model.config).length_multiple(base_model)
        most = self.micro_batch_tokens or encoding.default_training_tokens(batch.attention_mask.device)
        for places, part in batch.micro_batches(chosen, most, multiple, self.packing):
            vectors, mlm_sum = run(self.encoder, body, batch, part)
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
        vectors = finish(body, vectors)
        if is_pair:
            return torch.stack([vectors, vectors], dim=1)
        return vectors if view is not None else vectors.unflatten(0, (batch.num_documents, -1))
