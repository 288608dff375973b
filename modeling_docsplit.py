"""DocSplit: a masked language model trained so that two halves of a document get similar embeddings.

`DocSplitForContrastivePretraining` wraps any `AutoModelForMaskedLM`. A batch holds B documents and two views of each;
the loss is InfoNCE over cosine similarities with in-batch negatives plus a masked-LM loss on separately masked copies
(DocSplit, section 2.1 and 4.1; SimCSE, equation 1).

InfoNCE needs all *embeddings* of a batch at once, but never all activations. So `forward` sorts the views by length,
cuts them into micro-batches, trims each to its own longest row, encodes them one after another and computes one loss
over all embeddings: padding disappears, and the number is the same. With `cache_gradients` each micro-batch is
recomputed in the backward pass, so that memory no longer grows with the contrastive batch. The price of that is a
second forward pass (about a third of a step).

The file needs torch and transformers only, so that it can travel with a checkpoint. `save_pretrained` writes the
encoder in its native format: `AutoModel`, `AutoModelForMaskedLM` and `SentenceTransformer` load it without this file.
(A Longformer needs its `global_attention_mask` there, and `trust_remote_code=True` in sentence-transformers; to save
one takes docsplit/longformer_transformer.py too.)
"""

import contextlib
import copy
import inspect
import json
import os
import shutil
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import ModelOutput

Pooling = Literal["cls", "mean", "max"]
Objective = Literal["info_nce", "contrastive_tension"]
Similarity = Literal["cosine", "dot"]

TOKENS_A_MICRO_BATCH_COSTS = 128  # what one more micro-batch takes (launches, gradients of weights), as tokens

# Autocast would cast the weights once for all micro-batches and sum the gradients of all in bfloat16, where small ones
# are lost. A cast for each would keep as many copies of the weights.
MICRO_BATCHES_OF_A_CAST = 4

IGNORED = -100  # the value of `mlm_targets` where nothing is predicted

# What decides an embedding or the objective is kept in the checkpoint's config.json, under the key "docsplit".
DEFAULT_SETTINGS: dict[str, Any] = {
    "pooling": "cls",
    "max_seq_length": 512,
    "objective": "info_nce",
    "similarity": "cosine",
    "contrastive_temperature": 0.05,
    "contrastive_weight": 1.0,
    "mlm_weight": 0.1,
    "symmetric": False,
    "momentum_queue_size": 0,
    "momentum": 0.9995,
}

# What only training needs is beside the weights in a checkpoint: a second encoder and a queue of keys, or an adapter.
TRAINING_STATE_FILE = "training_state.safetensors"
ADAPTER_FOLDER = "adapter"

LORA_SCALE = 2  # alpha / rank in LoRA's section 4.1

# With which SentenceTransformer loads a Longformer: docsplit/longformer_transformer.py, copied into the checkpoint.
LONGFORMER_MODULE = "longformer_transformer.LongformerTransformer"

CT_NEGATIVES = 7  # to one positive (Contrastive Tension, section 3)


@dataclass
class DocSplitOutput(ModelOutput):
    """What `DocSplitForContrastivePretraining.forward` returns; losses and counts are scalars.

    With several processes each loss is scaled so that its mean over the processes is the value over the global batch.
    """

    loss: Tensor | None = None
    contrastive_loss: Tensor | None = None
    mlm_loss: Tensor | None = None
    embeddings: Tensor | None = None  # (B, 2, H), not normalised; None in a loss of masked LM alone
    num_masked_negatives: Tensor | None = None  # pairs left out because both texts are the same document
    num_computed_tokens: Tensor | None = None  # tokens of the micro-batches, padding included, one forward pass


def pool(hidden_states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Turn token states (R, T, H) and their mask (R, T) into one vector a row (R, H), in fp32 or wider.

    Raises:
        ValueError: for an unknown pooling.
    """
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    if pooling == "cls":
        return hidden_states[:, 0].to(dtype, copy=True)  # a view would keep all token states in memory
    mask = attention_mask.unsqueeze(-1)  # (R, T, 1)
    if pooling == "mean":
        total = (hidden_states * mask.to(hidden_states.dtype)).sum(dim=1, dtype=dtype)
        return total / mask.sum(dim=1).clamp(min=1)
    if pooling == "max":
        return hidden_states.masked_fill(mask == 0, float("-inf")).amax(dim=1).to(dtype)
    raise ValueError(f"pooling is {pooling!r}, expected one of {get_args(Pooling)}")


def micro_batches(lengths: Tensor, max_tokens: int | None, multiple: int = 1) -> Iterator[tuple[Tensor, int]]:
    """Cut rows into groups of similar length: yields (row indices, longest length), the longest rows first.

    Of all cuts of the sorted rows, the one with the least padding, where each group counts as
    `TOKENS_A_MICRO_BATCH_COSTS` more: many small groups would have none at all.

    Args:
        lengths: number of tokens of each row, (R,).
        max_tokens: bound on rows x longest row of a group; a longer single row makes a group of its own. None: one
            group.
        multiple: what the encoder pads the longest row to, `length_multiple`; it counts for padding and bound.
    """
    lengths, order = lengths.sort(descending=True, stable=True)
    unpadded = lengths.clamp(min=1).tolist()
    longest = [-(-length // multiple) * multiple for length in unpadded]
    num_rows = len(longest)
    if not num_rows:
        return
    if max_tokens is None:
        yield order, unpadded[0]
        return
    best, previous = [0] + [sys.maxsize] * num_rows, [0] * (num_rows + 1)  # of the first i rows
    for start in range(num_rows):
        cost = best[start] + TOKENS_A_MICRO_BATCH_COSTS
        for end in range(start + 1, min(start + max(max_tokens // longest[start], 1), num_rows) + 1):
            if cost + (end - start) * longest[start] < best[end]:
                best[end], previous[end] = cost + (end - start) * longest[start], start
    ends = [num_rows]
    while previous[ends[-1]]:
        ends.append(previous[ends[-1]])
    start = 0
    for end in reversed(ends):
        yield order[start:end], unpadded[start]
        start = end


def length_multiple(base_model: Any) -> int:
    """The encoder pads its input to a multiple of this many tokens: a Longformer of transformers to its window."""
    if base_model.config.model_type != "longformer" or not getattr(base_model, "pads_to_window", True):
        return 1
    windows = base_model.config.attention_window
    return windows if isinstance(windows, int) else max(windows)


def attend_as_documents_need(base_model: Any) -> None:
    """Make a Longformer or BigBird, called without more than ids and mask, attend as long documents need it.

    A Longformer's first token attends to all and all to it (Longformer, section 3.1): transformers leaves that to the
    caller. BigBird's block-sparse attention needs rows of more than so many tokens, and at the first short ones
    transformers switches to full attention for good: with this it is full for those rows alone. Any other encoder
    stays as it is.
    """
    if base_model.config.model_type in ("longformer", "big_bird"):
        # No hook, which sentence-transformers would pass by; and a method, of which a deep copy has its own.
        base_model.forward = types.MethodType(_forward_for_documents, base_model)


def _forward_for_documents(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    config = self.config
    if input_ids is not None and config.model_type == "longformer":
        if len(args) < 2 and kwargs.get("global_attention_mask") is None:
            kwargs["global_attention_mask"] = torch.zeros_like(input_ids)
            kwargs["global_attention_mask"][:, 0] = 1
    elif input_ids is not None and config.attention_type == "block_sparse":
        fits = input_ids.shape[1] > (5 + 2 * config.num_random_blocks) * config.block_size
        with torch.random.fork_rng(devices=[]):  # new modules are made for it, whose weights are drawn and thrown away
            self.set_attention_type("block_sparse" if fits else "original_full")
    return type(self).forward(self, input_ids, *args, **kwargs)


class _GatherRows(torch.autograd.Function):
    """Concatenate rows of all processes; the gradient of a row is the sum of what all processes ask of it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        padded = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, max(counts) - rows.shape[0]))
        buffers = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(buffers, padded.contiguous())
        return torch.cat([buffer[:count] for buffer, count in zip(buffers, counts)])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        gradient = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        start = sum(ctx.counts[: dist.get_rank()])
        return gradient[start : start + ctx.counts[dist.get_rank()]], None


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    temperature: float,
    targets: Tensor,
    excluded: Tensor | None = None,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Sum over anchors of -log softmax of similarity / temperature at the positive (SimCSE, equation 1).

    Args:
        anchors: (A, H).
        candidates: (C, H), the positives and negatives of all anchors.
        temperature: tau of the paper, 0.05 there.
        targets: (A,), the index of each anchor's positive among the candidates.
        excluded: (A, C), True where a candidate must not count as a negative. The positive itself never may be.

    Computed in fp32 (float64 for float64 inputs), whatever autocast says.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        dtype = torch.promote_types(anchors.dtype, torch.float32)
        anchors, candidates = anchors.to(dtype), candidates.to(dtype)
        if similarity == "cosine":
            anchors, candidates = F.normalize(anchors, dim=-1), F.normalize(candidates, dim=-1)
        logits = anchors @ candidates.T / temperature  # (A, C)
        if excluded is not None:
            logits = logits.masked_fill(excluded, float("-inf"))
        return F.cross_entropy(logits, targets, reduction="sum")


def contrastive_tension(anchors: Tensor, candidates: Tensor, targets: Tensor, excluded: Tensor) -> Tensor:
    """Sum over anchors of the binary cross-entropy of dot products with the positive and 7 drawn negatives.

    Contrastive Tension, section 3. Its negatives are pairs of other sentences; here each anchor meets other documents
    of the batch, drawn anew in each step from PyTorch's generator, which Trainer saves and restores.

    Args: as those of `info_nce`. Of an anchor with fewer than 7 candidates beside the excluded ones, all are used.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        dtype = torch.promote_types(anchors.dtype, torch.float32)
        logits = anchors.to(dtype) @ candidates.to(dtype).T  # (A, C)
        is_positive = torch.zeros_like(excluded).scatter_(1, targets[:, None], True)
        order = torch.rand(logits.shape, device=logits.device).masked_fill_(excluded | is_positive, -1)
        values, drawn = order.topk(CT_NEGATIVES, dim=1)
        chosen = torch.zeros_like(excluded).scatter_(1, drawn, values >= 0) | is_positive
        losses = F.binary_cross_entropy_with_logits(logits, is_positive.to(dtype), reduction="none")
        return (losses * chosen).sum()


class DocSplitForContrastivePretraining(PreTrainedModel):
    """Contrastive pretraining of any masked language model on two views of each document.

    Use `from_pretrained(name_or_path)` to start from a checkpoint and `DocSplitForContrastivePretraining(config)` to
    start from nothing. Keyword settings override those of the checkpoint and are saved with it: `pooling`,
    `max_seq_length`, `objective`, `similarity`, `contrastive_temperature`, `contrastive_weight`, `mlm_weight`,
    `symmetric`, `momentum_queue_size` and `momentum`.

    Two objectives have a second encoder, which starts as a copy and encodes the second view of each document. That of
    Contrastive Tension (`objective="contrastive_tension"`) is trained like the first, both without dropout. With
    `momentum_queue_size` it follows the first as a moving average, and the last embeddings that it made, instead of
    the other documents of the batch, are the negatives (Contriever, section 3.3; He et al. 2020). Only the first
    encoder is what the checkpoint is about; the rest is in a file of its own there, `TRAINING_STATE_FILE`.

    Attributes:
        micro_batch_tokens: bound on rows x longest row of one forward pass of the encoder; None encodes all views of
            the batch at once. Changes speed and memory, never the loss.
        cache_gradients: keep the activations of one micro-batch only and recompute the others in the backward pass.
    """

    config_class = PreTrainedConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    # The loss is a mean over the batch: Trainer must divide it by the number of accumulation steps. (It would not,
    # had `forward` taken **kwargs.) No argument of `forward` has "label" in its name, for `eval_loss` to appear.
    accepts_loss_kwargs = False

    def __init__(self, config: PreTrainedConfig, encoder: PreTrainedModel | None = None, **settings: Any):
        if encoder is None:  # the settings are written into the config: not into the one of the caller
            encoder = AutoModelForMaskedLM.from_config(copy.deepcopy(config))
        super().__init__(encoder.config)
        self.encoder = encoder
        self.config.docsplit = _checked_settings(encoder.config, settings)
        self.config.keys_to_ignore_at_inference = ["embeddings", "num_masked_negatives", "num_computed_tokens"]
        self.micro_batch_tokens: int | None = None
        self.cache_gradients = False
        self.second_encoder: Any = None
        self.lora_config: Any = None
        self.queue: dict[str, Tensor] | None = None
        self.training_state_loaded, self.training_state_lost = False, False
        self.recomputes_layers = False
        tied = getattr(encoder, "all_tied_weights_keys", None) or {}
        self.all_tied_weights_keys = {f"encoder.{key}": f"encoder.{value}" for key, value in tied.items()}
        _freeze_what_the_loss_does_not_reach(encoder, mlm=self.config.docsplit["mlm_weight"] != 0)
        attend_as_documents_need(encoder.base_model)
        if self.is_contrastive_tension or self.config.docsplit["momentum_queue_size"]:
            self.second_encoder = copy.deepcopy(encoder.base_model)
            if not self.is_contrastive_tension:
                self.second_encoder.requires_grad_(False)
        self.register_load_state_dict_pre_hook(_add_encoder_prefix)
        self.register_load_state_dict_post_hook(_raise_on_missing_keys)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load an encoder from the Hub or a directory; settings and `from_pretrained` options as keywords."""
        settings = {name: kwargs.pop(name) for name in DEFAULT_SETTINGS if name in kwargs}
        encoder = AutoModelForMaskedLM.from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        return cls(encoder.config, encoder, **settings)

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | Path, state_dict: dict[str, Tensor] | None = None, **kwargs: Any
    ) -> None:
        """Write the encoder in its native format, and what SentenceTransformer needs to give the same embeddings."""
        if kwargs.get("push_to_hub"):
            raise ValueError("save_pretrained(push_to_hub=True) would upload half a checkpoint: call push_to_hub().")
        if self.lora_config is not None:
            state_dict = _merge_lora(self.encoder)
        elif state_dict is not None:
            state_dict = {key.removeprefix("encoder."): value for key, value in state_dict.items()}
            state_dict = {key: value for key, value in state_dict.items() if not key.startswith("second_encoder.")}
        # Under the names that the model has now: BERT has others on the Hub, with which Trainer could not resume.
        kwargs["save_original_format"] = False
        self.encoder.save_pretrained(save_directory, state_dict=state_dict, **kwargs)
        if kwargs.get("is_main_process", True):
            _write_sentence_transformers_files(Path(save_directory), self.config)
            if self.training_state_lost:  # the best weights were loaded, at the end of a training
                return
            if self.lora_config is not None:
                from peft import get_peft_model_state_dict

                adapter = get_peft_model_state_dict(self.encoder.base_model, adapter_name="default")
                folder = Path(save_directory) / ADAPTER_FOLDER
                self.lora_config.save_pretrained(folder)
                save_file(
                    {f"base_model.model.{key}": value.contiguous() for key, value in adapter.items()},
                    folder / "adapter_model.safetensors",
                    metadata={"format": "pt"},
                )
            if self.second_encoder is not None:
                tensors = {f"second_encoder.{key}": value for key, value in self.second_encoder.state_dict().items()}
                tensors |= {f"queue.{key}": value for key, value in (self.queue or {}).items()}
                save_file(tensors, Path(save_directory) / TRAINING_STATE_FILE, metadata={"format": "pt"})

    def load_training_state(self, directory: str | Path) -> None:
        """Load second encoder and queue, or the adapter, before `Trainer.train(resume_from_checkpoint=directory)`.

        Trainer restores the encoder, but does not tell the model where from. A model without such a state needs none,
        and this does nothing.

        Raises:
            FileNotFoundError: if the checkpoint has none although this model needs it.
        """
        if self.lora_config is not None:
            from peft import set_peft_model_state_dict

            path = Path(directory) / ADAPTER_FOLDER / "adapter_model.safetensors"
            if not path.exists():
                raise FileNotFoundError(f"{directory} has no {ADAPTER_FOLDER}: its run was one without LoRA.")
            adapter = {key.removeprefix("base_model.model."): value for key, value in load_file(path).items()}
            unknown = cast(Any, set_peft_model_state_dict(self.encoder.base_model, adapter)).unexpected_keys
            if unknown:
                raise RuntimeError(f"The adapter of {directory} does not fit this encoder: {unknown[:5]}.")
            self.training_state_loaded, self.training_state_lost = True, False
        if self.second_encoder is None:
            return
        path = Path(directory) / TRAINING_STATE_FILE
        if not path.exists():
            raise FileNotFoundError(
                f"{directory} has no {TRAINING_STATE_FILE}: it is the checkpoint of another objective."
            )
        parts: dict[str, dict[str, Tensor]] = {"second_encoder": {}, "queue": {}}
        for key, value in load_file(path, device=str(self.device)).items():
            part, _, name = key.partition(".")
            parts[part][name] = value
        self.second_encoder.load_state_dict(parts["second_encoder"])
        self.queue = parts["queue"] or None
        self.training_state_loaded, self.training_state_lost = True, False

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.encoder.get_output_embeddings()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the encoder with `torch.compile`, for all lengths at once; what is around it stays as it is."""
        for base_model in (self.encoder.base_model, self.second_encoder):
            if base_model is not None:
                base_model.forward = torch.compile(base_model.forward, *args, **({"dynamic": True} | kwargs))

    def add_lora(self, rank: int) -> None:
        """Train low-rank updates of the encoder's matrices only (LoRA, section 4.1), `LORA_SCALE` times their product.

        Checkpoints hold the merged weights, in the native format, and the adapter in a folder of its own. To resume,
        start from the same weights, call this and then `load_training_state`.

        Raises:
            ValueError: with a second encoder, whose weights would be all that learns.
        """
        from peft import LoraConfig, inject_adapter_in_model

        if self.second_encoder is not None:
            raise ValueError("LoRA does not go with contrastive_tension or momentum_queue_size.")
        base_model = self.encoder.base_model
        poolers = [
            name for name, part in base_model.named_modules() if "pooler" in name and isinstance(part, nn.Linear)
        ]
        name = self.config._name_or_path
        self.lora_config = LoraConfig(
            r=rank,
            lora_alpha=LORA_SCALE * rank,
            target_modules="all-linear",
            exclude_modules=poolers or None,
            base_model_name_or_path=None if os.path.exists(name) else name,  # a folder here is nothing elsewhere
        )
        self.encoder.requires_grad_(False)
        inject_adapter_in_model(self.lora_config, base_model)

    @property
    def is_contrastive_tension(self) -> bool:
        return self.config.docsplit["objective"] == "contrastive_tension"

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        """Recompute layer by layer in the backward pass, for views that are too long for the memory.

        What transformers' public methods call, whose name depends on its version.

        Raises:
            ValueError: with Contrastive Tension: transformers does so in training mode only, which has dropout.
        """
        if enable and self.is_contrastive_tension:
            raise ValueError("--gradient_checkpointing does not go with contrastive_tension: use --cache_gradients.")
        super()._set_gradient_checkpointing(enable, *args, **kwargs)
        self.recomputes_layers = enable

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        if self.is_contrastive_tension:  # which has no dropout
            for encoder in (self.encoder, self.second_encoder):
                encoder.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        mlm_input_ids: Tensor | None = None,
        mlm_targets: Tensor | None = None,
        document_ids: Tensor | None = None,
        return_loss: bool = True,
    ) -> DocSplitOutput:
        """Encode both views of each document and compare them.

        Args:
            input_ids: (B, 2, T), the two views of B documents, padded on the right.
            attention_mask: (B, 2, T), 1 for tokens and 0 for padding.
            mlm_input_ids: (B, 2, T), copies of the views with masked tokens. Needed unless `mlm_weight` is 0.
            mlm_targets: (B, 2, T), the original ids at masked positions and -100 elsewhere.
            document_ids: (B,) int64, equal for equal documents: those never count as each other's negatives.
            return_loss: False gives the embeddings alone.

        Raises:
            ValueError: if the MLM inputs are missing although `mlm_weight` is not 0; for BigBird with activation
                checkpointing and without `cache_gradients`.
            RuntimeError: under DataParallel, which would split the negatives; in training, if a checkpoint was loaded
                without its training state.
        """
        if getattr(self, "_is_replica", False):
            raise RuntimeError(
                "DataParallel would split the negatives among GPUs: start with `accelerate launch` or `torchrun`, or "
                "choose one GPU with CUDA_VISIBLE_DEVICES=0."
            )
        if self.recomputes_layers and not self.cache_gradients and self.config.model_type == "big_bird":
            raise ValueError(
                "BigBird's --gradient_checkpointing needs --cache_gradients too: else a layer would be recomputed "
                "with the attention of a later micro-batch."
            )
        if self.training and self.training_state_lost:
            raise RuntimeError(
                "The weights were loaded, but not what belongs to them (a second encoder, a queue, an adapter): call "
                "model.load_training_state(checkpoint) before Trainer.train(resume_from_checkpoint=checkpoint)."
            )
        contrastive_weight, mlm_weight = (self.config.docsplit[f"{part}_weight"] for part in ("contrastive", "mlm"))
        contrastive, mlm = not return_loss or contrastive_weight != 0, return_loss and mlm_weight != 0
        if mlm and (mlm_input_ids is None or mlm_targets is None):
            raise ValueError(
                f"mlm_weight is {mlm_weight} but the batch has no mlm_input_ids and "
                "mlm_targets: make the collator with mlm=True, or the model with mlm_weight=0."
            )
        # What decides the course of the program is read from the device here, once: later it would have to wait for
        # all that was launched before.
        targets = mlm_targets.flatten(0, 1) if mlm else None  # type: ignore[union-attr]
        masked = None if targets is None else (targets != IGNORED).cpu()  # (2 B, T)
        lengths = attention_mask.flatten(0, 1).sum(dim=-1).cpu()  # (2 B,)
        num_targets = 0 if masked is None else int(masked.sum())
        counts = _gather_counts(input_ids.shape[0], num_targets, input_ids.device) if return_loss else []

        output, mlm_sum = DocSplitOutput(), lengths.new_zeros(())
        if self.second_encoder is not None and return_loss:
            output.embeddings, output.num_computed_tokens = self._encode_with_both(lengths, attention_mask, input_ids)
        else:
            tensors = (attention_mask, input_ids if contrastive else None, mlm_input_ids if mlm else None)
            rows = (None if tensor is None else tensor.flatten(0, 1) for tensor in tensors)
            embeddings, mlm_sum, output.num_computed_tokens = self._encode_views(
                self.encoder.base_model, lengths, masked, *rows, targets
            )
            output.embeddings = None if embeddings is None else embeddings.unflatten(0, (-1, 2))
        if not return_loss:
            return output

        losses = []
        if output.embeddings is not None:
            output.contrastive_loss, output.num_masked_negatives = self._contrastive_loss(
                output.embeddings, document_ids, [rows for rows, _ in counts]
            )
            losses.append(contrastive_weight * output.contrastive_loss)
        if mlm:
            output.mlm_loss = mlm_sum * (len(counts) / max(sum(targets for _, targets in counts), 1))
            losses.append(mlm_weight * output.mlm_loss)
        output.loss = torch.stack(losses).sum()
        return output

    def _encode_with_both(self, lengths: Tensor, attention_mask: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """First views (B, T) with the encoder, second ones with the other: (B, 2, H), and the number of tokens ()."""
        with_gradient = torch.is_grad_enabled()
        if not self.is_contrastive_tension and self.training and with_gradient:
            with torch.no_grad():
                theirs, ours = list(self.second_encoder.parameters()), list(self.encoder.base_model.parameters())
                torch._foreach_lerp_(theirs, ours, 1 - self.config.docsplit["momentum"])
        embeddings, computed_tokens = [], []
        for index, base_model in enumerate((self.encoder.base_model, self.second_encoder)):
            rows = (lengths.view(-1, 2)[:, index], None, attention_mask[:, index], input_ids[:, index], None, None)
            with torch.set_grad_enabled(with_gradient and (index == 0 or self.is_contrastive_tension)):
                encoded, _, its_tokens = self._encode_views(base_model, *rows)
            embeddings.append(cast(Tensor, encoded))
            computed_tokens.append(its_tokens)
        return torch.stack(embeddings, dim=1), torch.stack(computed_tokens).sum()

    def _encode_views(
        self, base_model: nn.Module, lengths: Tensor, masked: Tensor | None, *tensors: Tensor | None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Encode the rows (R, T) of all views, micro-batch by micro-batch, and put them back in order.

        Args:
            base_model: the encoder's, or the second encoder, which has no MLM head.
            lengths: (R,), on the CPU.
            masked: (R, T), on the CPU, True where a token is to be predicted; None: no MLM loss.
            tensors: attention mask, input ids, masked ids and MLM targets. Without input ids nothing is embedded.

        Returns: embeddings (R, H) or None, the sum of the MLM losses (), the number of tokens computed ().
        """
        device = tensors[0].device  # type: ignore[union-attr]
        embeddings, mlm_sums, order, num_computed_tokens = [], [], [], 0
        multiple = length_multiple(self.encoder.base_model)
        for number, (rows, longest) in enumerate(micro_batches(lengths, self.micro_batch_tokens, multiple)):
            if number % MICRO_BATCHES_OF_A_CAST == 0:
                torch.clear_autocast_cache()
            kept = None if masked is None else masked[rows, :longest].flatten().nonzero().squeeze(1).to(device)
            # Rows are cut out inside, so that what is kept for the backward pass is no copy of them.
            arguments = (base_model, rows.to(device), longest, kept, *tensors)
            if self.cache_gradients and torch.is_grad_enabled():
                embedding, mlm_sum = checkpoint(self._encode_micro_batch, *arguments, use_reentrant=False)
            else:
                embedding, mlm_sum = self._encode_micro_batch(*arguments)  # type: ignore[arg-type]
            embeddings.append(embedding)
            mlm_sums.append(mlm_sum)
            order.append(rows)
            num_computed_tokens += len(rows) * -(-longest // multiple) * multiple
        in_order = None
        if tensors[1] is not None:
            in_order = torch.cat(embeddings)[torch.cat(order).argsort().to(device)]
        return in_order, torch.stack(mlm_sums).sum(), torch.tensor(num_computed_tokens, device=device)

    def _encode_micro_batch(
        self,
        base_model: nn.Module,
        rows: Tensor,
        longest: int,
        kept: Tensor | None,
        attention_mask: Tensor,
        input_ids: Tensor | None,
        mlm_input_ids: Tensor | None,
        mlm_targets: Tensor | None,
    ) -> tuple[Tensor | None, Tensor]:
        """Embeddings (R, H) of some rows and the summed MLM loss () of their masked copies; free of side effects.

        Args:
            rows: (R,), which rows, of `longest` tokens at most.
            kept: (M,), the masked tokens as positions in the rows one after another, (R x longest,).
        """
        attention_mask = attention_mask[rows, :longest]
        copies = [ids[rows, :longest] for ids in (input_ids, mlm_input_ids) if ids is not None]
        if mlm_targets is None or kept is None:
            hidden_states = base_model(input_ids=copies[0], attention_mask=attention_mask)[0]
            return self._pool(hidden_states, attention_mask), torch.zeros((), device=rows.device)
        # The views and their masked copies go through the encoder together: half the calls, and half the times that
        # the gradient of the vocabulary is written. A micro-batch without any masked token still takes part, with an
        # empty sum: under DDP each parameter of the head needs its gradient on every process.
        with _select_hidden_states(base_model, len(rows), kept) as others:
            logits = self.encoder(
                input_ids=torch.cat(copies), attention_mask=torch.cat([attention_mask] * len(copies))
            ).logits  # (M, V)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        mlm_sum = F.cross_entropy(logits.to(dtype), mlm_targets[rows, :longest].flatten()[kept], reduction="sum")
        return None if input_ids is None else self._pool(others[0], attention_mask), mlm_sum

    def _pool(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        return pool(hidden_states, attention_mask, self.config.docsplit["pooling"])

    def _contrastive_loss(
        self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """The objective of this process's documents, with those of all processes, or the queue, as negatives.

        Args:
            embeddings: (B, 2, H).
            document_ids: (B,) or None.
            counts: the number of documents of each process.

        Returns: the loss (), scaled so that its mean over processes is the mean over all documents, and the number of
            pairs that were left out because both sides are the same document ().
        """
        settings, num_documents = self.config.docsplit, sum(counts)
        everything = embeddings if len(counts) == 1 else _GatherRows.apply(embeddings, counts)  # (N, 2, H)
        start = sum(counts[: dist.get_rank()]) if len(counts) > 1 else 0
        targets = torch.arange(start, start + embeddings.shape[0], device=embeddings.device)
        excluded, num_excluded, all_ids = None, targets.new_zeros(()), None
        if document_ids is not None:
            all_ids = document_ids if len(counts) == 1 else _GatherRows.apply(document_ids, counts)
            excluded = document_ids[:, None] == all_ids[None, :]  # (B, N)
            excluded[torch.arange(len(targets)), targets] = False
            num_excluded = excluded.sum()
        scale = len(counts) / num_documents
        first, second = everything.unbind(1)
        if settings["momentum_queue_size"]:
            total, num_excluded = self._loss_with_queue(
                embeddings[:, 0], second.detach(), targets, document_ids, all_ids
            )
            return total * scale, num_excluded
        if self.is_contrastive_tension:
            if num_documents <= CT_NEGATIVES:
                raise ValueError(
                    f"Contrastive Tension draws {CT_NEGATIVES} other documents of the batch, which has "
                    f"{num_documents}: raise --per_device_train_batch_size, or that of evaluation."
                )
            if excluded is None:
                excluded = torch.zeros(len(targets), num_documents, dtype=torch.bool, device=targets.device)
            total = contrastive_tension(embeddings[:, 0], second, targets, excluded)
            return total * (scale / (1 + CT_NEGATIVES)), num_excluded
        options = (settings["contrastive_temperature"], targets, excluded, settings["similarity"])
        total = info_nce(embeddings[:, 0], second, *options)
        if settings["symmetric"]:
            total = (total + info_nce(embeddings[:, 1], first, *options)) / 2
        return total * scale, num_excluded

    def _loss_with_queue(
        self, anchors: Tensor, keys: Tensor, targets: Tensor, document_ids: Tensor | None, all_ids: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """InfoNCE of the anchors (B, H) against their own keys and those of earlier batches (MoCo, algorithm 1).

        In training the keys of all processes, (N, H), then take the place of the oldest in the queue. It starts empty.

        Returns: the summed loss () and the number of keys left out because they are of the same document ().

        Raises:
            ValueError: if the batch is larger than the queue.
        """
        size, settings = self.config.docsplit["momentum_queue_size"], self.config.docsplit
        if len(keys) > size:
            raise ValueError(f"--momentum_queue_size is {size}, but a batch has {len(keys)} documents: raise it.")
        if self.queue is None:
            self.queue = {
                "keys": keys.new_zeros(size, keys.shape[1], dtype=torch.promote_types(keys.dtype, torch.float32)),
                "document_ids": targets.new_zeros(size),
                "count": targets.new_zeros(()),  # of all keys that were ever put in
            }
        queue = {name: value.to(keys.device) for name, value in self.queue.items()}  # it was loaded on another
        own = keys[targets]
        excluded = torch.arange(size, device=targets.device).expand(len(own), size) >= queue["count"]  # still empty
        num_excluded = targets.new_zeros(())
        if document_ids is not None:
            same = (document_ids[:, None] == queue["document_ids"]) & ~excluded
            excluded, num_excluded = excluded | same, same.sum()
        others = ~torch.eye(len(own), dtype=torch.bool, device=own.device)  # no negatives from the batch
        total = info_nce(
            anchors,
            torch.cat([own, queue["keys"]]),
            settings["contrastive_temperature"],
            torch.arange(len(own), device=own.device),
            torch.cat([others, excluded], dim=1),
            settings["similarity"],
        )
        if self.training:
            places = (queue["count"] + torch.arange(len(keys), device=keys.device)) % size
            queue["keys"].index_copy_(0, places, keys.to(queue["keys"].dtype))
            queue["document_ids"].index_copy_(0, places, torch.zeros_like(places) if all_ids is None else all_ids)
            self.queue = queue | {"count": queue["count"] + len(keys)}
        return total, num_excluded


def _gather_counts(num_documents: int, num_targets: int, device: torch.device) -> list[tuple[int, int]]:
    """The number of documents and of masked tokens of each process, in one collective."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return [(num_documents, num_targets)]
    local = torch.tensor([num_documents, num_targets], device=device)
    buffers = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(buffers, local)
    return [(rows, targets) for rows, targets in torch.stack(buffers).tolist()]


@contextlib.contextmanager
def _select_hidden_states(base_model: nn.Module, num_rows: int, kept: Tensor) -> Iterator[list[Tensor]]:
    """Let the head that follows `base_model` see only the states (M, H) at the positions `kept` of the last rows.

    A masked-LM head is most of a small model's cost and needs 15 % of the tokens only. Every `...ForMaskedLM` applies
    its head to the first output of its base model, so this works for each of them without knowing the head.

    Yields: a list that receives the states of the rows before the last `num_rows`, (rows, T, H).
    """
    others: list[Tensor] = []

    def select(module: nn.Module, args: Any, output: Any) -> Any:
        states = output.last_hidden_state
        others.append(states[:-num_rows])
        output.last_hidden_state = states[-num_rows:].flatten(0, 1)[kept]
        return output

    handle = base_model.register_forward_hook(select)
    try:
        yield others
    finally:
        handle.remove()


def _freeze_what_the_loss_does_not_reach(encoder: PreTrainedModel, mlm: bool) -> None:
    """Poolers, and without an MLM loss its head: DDP waits for a gradient from each parameter that asks for one."""
    base = {id(parameter): name for name, parameter in encoder.base_model.named_parameters()}
    for parameter in encoder.parameters():
        name = base.get(id(parameter))
        if "pooler." in (name or "") or (name is None and not mlm):
            parameter.requires_grad_(False)


def _checked_settings(config: PreTrainedConfig, overrides: dict[str, Any]) -> dict[str, Any]:
    """Defaults, then what the checkpoint says, then the overrides.

    Raises:
        ValueError: for a setting that does not exist or cannot work with this encoder.
    """
    saved = getattr(config, "docsplit", None) or {}
    settings = {**DEFAULT_SETTINGS, **saved, **overrides}
    positions = max_positions(config)
    if "max_seq_length" not in saved and "max_seq_length" not in overrides and positions is not None:
        settings["max_seq_length"] = min(settings["max_seq_length"], positions)
    if unknown := set(settings) - set(DEFAULT_SETTINGS):
        raise ValueError(f"Unknown settings {sorted(unknown)}, expected some of {sorted(DEFAULT_SETTINGS)}.")
    if settings["pooling"] not in get_args(Pooling):
        raise ValueError(f"pooling is {settings['pooling']!r}, expected one of {get_args(Pooling)}.")
    if settings["objective"] not in get_args(Objective):
        raise ValueError(f"objective is {settings['objective']!r}, expected one of {get_args(Objective)}.")
    if settings["similarity"] not in get_args(Similarity):
        raise ValueError(f"similarity is {settings['similarity']!r}, expected one of {get_args(Similarity)}.")
    if settings["momentum_queue_size"] < 0 or not 0 <= settings["momentum"] <= 1:
        raise ValueError(
            f"momentum_queue_size is {settings['momentum_queue_size']} and momentum {settings['momentum']}, expected "
            "0 (no queue) or more, and a share of 1."
        )
    if settings["objective"] == "contrastive_tension" and settings["momentum_queue_size"]:
        raise ValueError("Contrastive Tension has a second encoder of its own: leave out momentum_queue_size.")
    if (settings["objective"] == "contrastive_tension" or settings["momentum_queue_size"]) and (
        settings["mlm_weight"] or settings["symmetric"] or not settings["contrastive_weight"]
    ):
        raise ValueError(
            "With a second encoder (contrastive_tension, momentum_queue_size) the loss is contrastive alone, in one "
            "direction: set mlm_weight=0, symmetric=False and contrastive_weight=1; or, if it is the checkpoint's "
            "objective and not yours, objective='info_nce' and momentum_queue_size=0."
        )
    if settings["contrastive_temperature"] <= 0:
        raise ValueError(f"contrastive_temperature is {settings['contrastive_temperature']}, expected more than 0.")
    for name in ("contrastive_weight", "mlm_weight"):
        if settings[name] < 0:
            raise ValueError(f"{name} is {settings[name]}, expected 0 (none) or more.")
    if settings["contrastive_weight"] == settings["mlm_weight"] == 0:
        raise ValueError("contrastive_weight and mlm_weight are both 0: nothing is left to train.")
    if positions is not None and settings["max_seq_length"] > positions:
        raise ValueError(
            f"max_seq_length is {settings['max_seq_length']}, but this encoder has positions for {positions} tokens: "
            f"set max_seq_length={positions} or less, or choose a long-document encoder."
        )
    return settings


def max_positions(config: PreTrainedConfig) -> int | None:
    """How many tokens the encoder has positions for; None where the config sets no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:
        return None
    # RoBERTa and its kin (Longformer, XLM-R, CamemBERT ...) count positions from padding_idx + 1.
    counts_from_padding = any(name in config.model_type for name in ("roberta", "longformer", "camembert", "mpnet"))
    return positions - (config.pad_token_id + 1) if counts_from_padding else positions


def has_pooler(config: PreTrainedConfig) -> bool:
    """Whether `AutoModel` adds a pooler unless told `add_pooling_layer=False`.

    BERT's is neither trained nor used here: its weights would be random in each process.
    """
    model_class: Any = MODEL_MAPPING.get(type(config), None)  # none of an architecture that brings its own code
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    return model_class is not None and "add_pooling_layer" in inspect.signature(model_class.__init__).parameters


def _add_encoder_prefix(module: Any, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
    """Accept a checkpoint's native keys: Trainer resumes with `load_state_dict(..., strict=False)`, silently."""
    for key in list(state_dict):
        if key.startswith(prefix) and not key.startswith((f"{prefix}encoder.", f"{prefix}second_encoder.")):
            state_dict[f"{prefix}encoder.{key[len(prefix) :]}"] = state_dict.pop(key)
    if module.lora_config is not None:
        _load_merged(module, state_dict, prefix)
    # `load_state_dict` copies the dict before it gets here, so that the caller's own stays as it was.


def _load_merged(module: Any, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Replace a checkpoint's plain weights in `state_dict` by those of a model with LoRA layers.

    If its adapter was loaded before, the matrices stay what they are. Else they become the merged ones, to which
    nothing is then added.

    Raises:
        RuntimeError: if weights are missing or unknown, or the run had started from other weights than this one.
    """
    own = module.state_dict(prefix=prefix)
    plain = {key: key.replace(".base_layer.", ".") for key in own if ".lora_" not in key}
    missing = set(plain.values()) - set(state_dict) - {f"{prefix}{key}" for key in module.all_tied_weights_keys}
    if missing or set(state_dict) - set(plain.values()):
        raise RuntimeError(
            f"The checkpoint does not fit this model: of its weights are missing {sorted(missing)[:5]}."
        )
    merged = {f"{prefix}encoder.{key}": value for key, value in _merge_lora(module.encoder).items()}
    for key, name in plain.items():
        if name not in state_dict:
            continue
        if not module.training_state_loaded or ".base_layer." not in key:
            own[key] = state_dict[name]
        elif not torch.allclose(merged[name], state_dict[name].to(merged[name]), rtol=1e-3, atol=1e-5):
            raise RuntimeError(f"The run did not start from these weights: with its adapter {name} is another matrix.")
    if not module.training_state_loaded:
        own |= {key: torch.zeros_like(value) for key, value in own.items() if ".lora_B." in key}
    module.training_state_lost, module.training_state_loaded = not module.training_state_loaded, False
    state_dict.clear()
    state_dict.update(own)


def _merge_lora(encoder: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of an encoder with LoRA layers under the names, and with the values, that it has without them."""
    layers: dict[str, Any] = {
        name: module for name, module in encoder.named_modules() if hasattr(module, "get_delta_weight")
    }
    merged = {}
    for key, value in encoder.state_dict().items():
        layer, _, part = key.partition(".base_layer.")
        if ".lora_" in key:
            continue
        if part == "weight":
            value = value + layers[layer].get_delta_weight("default").to(value.dtype)
        merged[f"{layer}.{part}" if part else key] = value
    return merged


def _raise_on_missing_keys(module: Any, incompatible_keys: Any) -> None:
    """Refuse a checkpoint that would leave a weight as it was; the keys of tied weights may be absent.

    Raises:
        RuntimeError: naming the keys that are missing or unknown.
    """
    missing = set(incompatible_keys.missing_keys) - set(module.all_tied_weights_keys)
    of_training_state = {key for key in missing if key.startswith("second_encoder.")}
    if of_training_state:
        module.training_state_lost, module.training_state_loaded = not module.training_state_loaded, False
    missing -= of_training_state
    unexpected = incompatible_keys.unexpected_keys
    if missing or unexpected:
        raise RuntimeError(
            f"The checkpoint does not fit this model: {len(missing)} weights are missing {sorted(missing)[:5]} and "
            f"{len(unexpected)} are unknown {sorted(unexpected)[:5]}. Start the run with the same encoder "
            "configuration as the checkpoint, or load it with from_pretrained."
        )
    incompatible_keys.missing_keys.clear()


def _write_sentence_transformers_files(directory: Path, config: PreTrainedConfig) -> None:
    """Say in SentenceTransformer's own files which pooling and length the embeddings have."""
    pooling = config.docsplit["pooling"]
    transformer_type = "sentence_transformers.models.Transformer"
    if config.model_type == "longformer":
        transformer_type = LONGFORMER_MODULE
        shutil.copy(Path(__file__).parent / "docsplit" / "longformer_transformer.py", directory)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": transformer_type},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    transformer = {
        "max_seq_length": config.docsplit["max_seq_length"],
        "do_lower_case": False,
        "model_kwargs": {"add_pooling_layer": False} if has_pooler(config) else {},
    }
    pooler = {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": pooling == "max",
    }
    (directory / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name, content in {
        "modules.json": modules,
        "sentence_bert_config.json": transformer,
        "1_Pooling/config.json": pooler,
        "config_sentence_transformers.json": {"similarity_fn_name": config.docsplit["similarity"]},
    }.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
