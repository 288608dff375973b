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
one takes docsplit/modeling/longformer_transformer.py too.)
"""

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from docsplit.modeling.distributed import GatherRows, gather_counts
from docsplit.modeling.encoding import MICRO_BATCHES_PER_CAST, micro_batches, pool, select_hidden_states
from docsplit.modeling.long_documents import attend_as_documents_need, length_multiple
from docsplit.modeling.lora import ADAPTER_FOLDER, LORA_SCALE, merge_lora
from docsplit.modeling.objectives import CT_NEGATIVES, contrastive_tension, info_nce
from docsplit.modeling.saving import (
    TRAINING_STATE_FILE,
    add_encoder_prefix,
    raise_on_missing_keys,
    write_sentence_transformers_files,
)
from docsplit.modeling.settings import DEFAULT_SETTINGS, IGNORED, checked_settings, freeze_unused_parameters


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
        self.config.docsplit = checked_settings(encoder.config, settings)
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
        freeze_unused_parameters(encoder, mlm=self.config.docsplit["mlm_weight"] != 0)
        attend_as_documents_need(encoder.base_model)
        if self.is_contrastive_tension or self.config.docsplit["momentum_queue_size"]:
            self.second_encoder = copy.deepcopy(encoder.base_model)
            if not self.is_contrastive_tension:
                self.second_encoder.requires_grad_(False)
        self.register_load_state_dict_pre_hook(add_encoder_prefix)
        self.register_load_state_dict_post_hook(raise_on_missing_keys)

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
            state_dict = merge_lora(self.encoder)
        elif state_dict is not None:
            state_dict = {key.removeprefix("encoder."): value for key, value in state_dict.items()}
            state_dict = {key: value for key, value in state_dict.items() if not key.startswith("second_encoder.")}
        # Under the names that the model has now: BERT has others on the Hub, with which Trainer could not resume.
        kwargs["save_original_format"] = False
        self.encoder.save_pretrained(save_directory, state_dict=state_dict, **kwargs)
        if kwargs.get("is_main_process", True):
            write_sentence_transformers_files(Path(save_directory), self.config)
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
        counts = gather_counts(input_ids.shape[0], num_targets, input_ids.device) if return_loss else []

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
            if number % MICRO_BATCHES_PER_CAST == 0:
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
        with select_hidden_states(base_model, len(rows), kept) as others:
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
        everything = embeddings if len(counts) == 1 else GatherRows.apply(embeddings, counts)  # (N, 2, H)
        start = sum(counts[: dist.get_rank()]) if len(counts) > 1 else 0
        targets = torch.arange(start, start + embeddings.shape[0], device=embeddings.device)
        excluded, num_excluded, all_ids = None, targets.new_zeros(()), None
        if document_ids is not None:
            all_ids = document_ids if len(counts) == 1 else GatherRows.apply(document_ids, counts)
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
