"""A Longformer's attention (Beltagy et al. 2020, section 3.1), in tiles: the same numbers, in less time and memory.

`use_blocked_attention(model)` gives it to every Longformer in a model, in place. Weights, config and checkpoint stay
what they are, and `use_transformers_attention(model)` takes it away again.

transformers multiplies overlapping chunks, copies their diagonals into a (T, 2w + 1) matrix a head, and keeps several
of those for the backward pass. Here a tile of consecutive queries meets its keys in one matrix product: the global
tokens, then those from w before its first query to w behind its last one. Only queries, keys and values are kept; the
backward pass computes the scores of one tile after another again (FlashAttention, Dao et al. 2022), so that memory
grows with T and not with T x w. Dropout is drawn again from the same seed. Texts need not be padded to the window.

A global token attends with projections of its own to all tokens. transformers projects all tokens for it; with few
global tokens their queries are taken through the transposed projection instead: q . (W h + b) = (W' q) . h + q . b,
and sum p (W h + b) = W sum p h + b sum p.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LongformerModel
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutputWithPooling,
    LongformerSelfAttention,
)
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Queries of a tile. With more, more of its products fall outside of the window; with fewer, there are more of them.
TILE = {"cpu": 160, "cuda": 256}
# Global keys get room for so many at a time: a product with 688 columns is faster than with 673. Not in short texts.
ALIGNMENT = 16


def use_blocked_attention(model: nn.Module) -> None:
    """Let every Longformer within `model` compute its attention in tiles.

    Raises:
        ValueError: if there is none.
    """
    classes: dict[type, type] = {LongformerModel: BlockedLongformerModel, LongformerSelfAttention: BlockedAttention}
    if not _exchange_classes(model, classes):
        raise ValueError(f"{type(model).__name__} has no Longformer in it: there is no attention to replace.")


def use_transformers_attention(model: nn.Module) -> None:
    """Undo `use_blocked_attention`."""
    _exchange_classes(model, {BlockedLongformerModel: LongformerModel, BlockedAttention: LongformerSelfAttention})


def _exchange_classes(model: nn.Module, classes: dict[type, type]) -> int:
    """Swap classes that differ in methods alone; return the number of modules that have the new class."""
    modules = [module for module in model.modules() if type(module) in {*classes, *classes.values()}]
    for module in modules:
        module.__class__ = classes.get(type(module), type(module))
    return len(modules)


class BlockedLongformerModel(LongformerModel):
    """A `LongformerModel` that pads nothing, and makes no (T, T) mask on the way to a (T,) one.

    `config.output_attentions` does not count, with a warning; asking for the weights in a call is an error.
    """

    pads_to_window = False

    def forward(  # noqa: PLR0913 (as transformers calls it)
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run transformers' `LongformerModel.forward`, without padding to the window and without attention weights."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        if input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        embedded = self.embeddings(
            input_ids=input_ids,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
        )
        if attention_mask is None:
            attention_mask = torch.ones(embedded.shape[:2], dtype=torch.long, device=embedded.device)
        if global_attention_mask is not None:
            attention_mask = self._merge_to_attention_mask(attention_mask, global_attention_mask)
        if padding := -embedded.shape[1] % (self.config.chunk_size_feed_forward or 1):  # such chunks must be full
            embedded, attention_mask = F.pad(embedded, (0, 0, 0, padding)), F.pad(attention_mask, (0, padding))
        if output_attentions is None and self.config.output_attentions:
            logger.warning_once(
                "config.output_attentions is set, but a Longformer with blocked attention returns none. "
                "docsplit.modeling.families.longformer_attention.use_transformers_attention(model) brings them back."
            )
        return_dict = self.config.return_dict if return_dict is None else return_dict
        outputs = self.encoder(
            embedded,
            attention_mask=attention_mask.long() - 1,  # -1: padding, 0: local, 1: global
            padding_len=padding,
            output_attentions=bool(output_attentions),
            output_hidden_states=(
                self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
            ),
            return_dict=return_dict,
        )
        pooled = self.pooler(outputs[0]) if self.pooler is not None else None
        if not return_dict:
            return outputs[0], pooled, *outputs[1:]
        return LongformerBaseModelOutputWithPooling(pooler_output=pooled, **outputs)


BlockedLongformerModel.__name__ = "LongformerModel"  # which a checkpoint says of itself


class BlockedAttention(LongformerSelfAttention):
    """Self-attention in tiles: (B, T, H) to (B, T, H)."""

    @torch.compiler.disable  # it draws from generators and cuts by numbers that it reads; the layers around it compile
    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        is_index_masked: Tensor,
        is_index_global_attn: Tensor,
        is_global_attn: bool,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """Hidden states (B, T, H), masks (B, T) -> attention output (B, T, H), 0 for padding.

        Raises:
            ValueError: if the attention weights are wanted, which are never all there.
        """
        if output_attentions:
            raise ValueError(
                "The blocked attention of a Longformer keeps no attention weights (output_attentions=True): call "
                "docsplit.modeling.families.longformer_attention.use_transformers_attention(model) before."
            )
        query, key, value = (_split_heads(self, layer(hidden_states)) for layer in (self.query, self.key, self.value))
        counts = is_index_global_attn.sum(dim=1)
        num_global = int(counts.max()) if is_global_attn else 0  # of the text that has most
        alignment = ALIGNMENT if hidden_states.shape[1] > 16 * ALIGNMENT else 1
        num_places = -(-num_global // alignment) * alignment  # G; the rest are other tokens, and masked
        places = is_index_global_attn.long().argsort(dim=1, descending=True, stable=True)[:, :num_places]  # (B, G)
        is_place = torch.arange(places.shape[1], device=counts.device) < counts[:, None]  # (B, G)
        attended = _WindowAttention.apply(
            query,
            key,
            value,
            _take(key, places),
            _take(value, places),
            is_index_masked | is_index_global_attn,
            ~is_place,
            self.one_sided_attn_window_size,
            self.dropout if self.training else 0.0,
        )
        if num_global:  # their rows are 0 so far, and adding needs no copy of the gradient
            places, is_place = places[:, :num_global], is_place[:, :num_global]
            from_global = _attend_from_global_tokens(self, hidden_states, places, is_index_masked)[is_place]
            index = is_index_global_attn.nonzero(as_tuple=True)
            attended.index_put_(index, from_global.to(attended.dtype), accumulate=True)
        return (attended,)


BlockedAttention.__name__ = "LongformerSelfAttention"  # by which FSDP and device maps find the layers


def _split_heads(self: Any, states: Tensor) -> Tensor:
    """Split heads, (B, T, H) to (B, heads, T, d), such that a tile is a view for a batched product."""
    states = states.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)
    return states if len(states) == 1 else states.contiguous()


def _take(states: Tensor, places: Tensor) -> Tensor:
    """Pick the states (B, heads, T, d) at the places (B, G): (B, heads, G, d)."""
    index = places[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, index)


def _attend_from_global_tokens(self: Any, hidden_states: Tensor, places: Tensor, is_masked: Tensor) -> Tensor:
    """Return what the tokens at `places` (B, G) get from all tokens, (B, G, H)."""
    source = hidden_states.gather(1, places[:, :, None].expand(-1, -1, hidden_states.shape[2]))
    query = _split_heads(self, self.query_global(source)) / math.sqrt(self.head_dim)  # (B, heads, G, d)
    through_queries = places.shape[1] < self.head_dim and all(
        _is_plain(layer) and layer.weight.device == hidden_states.device  # nothing offloaded
        for layer in (self.key_global, self.value_global)
    )
    if through_queries:
        heads = (self.num_heads, self.head_dim)
        weight, bias = self.key_global.weight.unflatten(0, heads), self.key_global.bias.view(*heads, 1)
        through = torch.einsum("bngd,ndh->bngh", query, weight)  # `@` would copy the weight for each row
        scores = through.flatten(1, 2) @ hidden_states.mT  # (B, heads x G, T)
        scores = scores.unflatten(1, (self.num_heads, -1)) + query @ bias
    else:
        scores = query @ _split_heads(self, self.key_global(hidden_states)).mT  # (B, heads, G, T)
    scores = scores.masked_fill(is_masked[:, None, None], torch.finfo(scores.dtype).min)
    weights = _softmax(scores).to(scores.dtype)
    weights = F.dropout(weights, self.dropout, self.training)
    if through_queries:
        weight, bias = self.value_global.weight.unflatten(0, heads), self.value_global.bias.view(heads[0], 1, heads[1])
        mixed = (weights.flatten(1, 2) @ hidden_states).unflatten(1, (self.num_heads, -1))  # (B, heads, G, H)
        output = torch.einsum("bngh,ndh->bngd", mixed, weight) + weights.sum(dim=-1, keepdim=True) * bias
    else:
        output = weights @ _split_heads(self, self.value_global(hidden_states))
    return output.transpose(1, 2).flatten(2)


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer only has its weight and bias: no LoRA, no quantised or pruned weight, no hook."""
    is_hooked = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer) is nn.Linear and type(layer.weight) in (nn.Parameter, Tensor) and not is_hooked


def _softmax(scores: Tensor) -> Tensor:
    """Compute it in fp32 or wider."""
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _draw_kept(weights: Tensor, dropout: float, generator: torch.Generator) -> Tensor:
    """Draw what dropout multiplies the weights by, from sixteen random bits each: faster than `bernoulli_`."""
    random = torch.empty(-(-weights.numel() // 4), dtype=torch.int64, device=weights.device)
    random.random_(-(2**63), None, generator=generator)
    dropped = min(max(round(dropout * 2**16), 1), 2**16 - 1)  # of 2 ** 16
    is_kept = random.view(torch.int16)[: weights.numel()].view(weights.shape) >= dropped - 2**15
    return is_kept.to(weights.dtype).mul_(2**16 / (2**16 - dropped))


class _WindowAttention(torch.autograd.Function):
    """Compute attention of queries (B, heads, T, d) to keys at most `window` away and to global ones (B, heads, G, d).

    `is_removed` (B, T) says which tokens are no keys of a window (padding and global ones), `is_no_global` (B, G)
    which of the global keys are none. Returns (B, T, heads x d), 0 for the removed tokens.
    """

    @staticmethod
    def forward(  # noqa: PLR0913 (as autograd has it)
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        global_key: Tensor,
        global_value: Tensor,
        is_removed: Tensor,
        is_no_global: Tensor,
        window: int,
        dropout: float,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, global_key, global_value, is_removed, is_no_global)
        seed = int(torch.randint(2**62, ())) if dropout else 0  # from the generator that checkpointing restores
        ctx.options = (window, dropout, seed)
        generator = _seeded(query.device, seed) if dropout else None
        batch, heads, length, head_dim = query.shape
        output = query.new_empty(batch, length, heads * head_dim)
        for rows, keys, bias in _tiles(query, is_removed, is_no_global, window):
            tile, its_keys = query[:, :, rows], torch.cat([global_key, key[:, :, keys]], dim=2)
            its_values = torch.cat([global_value, value[:, :, keys]], dim=2)
            if generator is None:
                attended = F.scaled_dot_product_attention(tile, its_keys, its_values, attn_mask=bias)
            else:  # for which PyTorch has no fused kernel on a CPU
                weights = _attention_weights(tile, its_keys, bias)
                weights *= _draw_kept(weights, dropout, generator)
                attended = weights.to(tile.dtype) @ its_values
            output[:, rows] = attended.transpose(1, 2).flatten(2)
        return output.masked_fill_(is_removed[:, :, None], 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, global_key, global_value, is_removed, is_no_global = ctx.saved_tensors
        dtype = torch.promote_types(query.dtype, torch.float32)  # in which the parts from several tiles are summed
        grad_query = torch.empty_like(query)
        grad_key, grad_value = torch.zeros_like(key, dtype=dtype), torch.zeros_like(value, dtype=dtype)
        grad_global_key = torch.zeros_like(global_key, dtype=dtype)
        grad_global_value = torch.zeros_like(global_value, dtype=dtype)
        window, dropout, seed = ctx.options
        generator = _seeded(query.device, seed) if dropout else None
        num_global, scale = global_key.shape[2], query.shape[3] ** -0.5
        for rows, keys, bias in _tiles(query, is_removed, is_no_global, window):
            tile, its_keys = query[:, :, rows], torch.cat([global_key, key[:, :, keys]], dim=2)
            its_values = torch.cat([global_value, value[:, :, keys]], dim=2)
            grad = grad_outputs[0][:, rows].masked_fill(is_removed[:, rows, None], 0.0)
            grad = grad.unflatten(2, (query.shape[1], -1)).transpose(1, 2)  # (B, heads, rows, d)
            used = weights = _attention_weights(tile, its_keys, bias)
            grad_weights = (grad @ its_values.mT).to(weights.dtype)
            if generator is not None:
                kept = _draw_kept(weights, dropout, generator)
                used = weights * kept
                grad_weights *= kept
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype).to(grad.dtype)
            grad_query[:, :, rows] = (grad_scores @ its_keys) * scale
            grad_keys, grad_values = grad_scores.mT @ (tile * scale), used.to(grad.dtype).mT @ grad
            grad_key[:, :, keys] += grad_keys[:, :, num_global:]
            grad_value[:, :, keys] += grad_values[:, :, num_global:]
            grad_global_key += grad_keys[:, :, :num_global]
            grad_global_value += grad_values[:, :, :num_global]
        gradients = (grad_key, grad_value, grad_global_key, grad_global_value)
        return grad_query, *(gradient.to(query.dtype) for gradient in gradients), None, None, None, None


def _tiles(
    query: Tensor, is_removed: Tensor, is_no_global: Tensor, window: int
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield each tile's rows, its keys beside the global ones, and the bias of its scores (B, 1, rows, G + keys).

    The bias is 0 or so low, though finite, that nothing is left of the weight.
    """
    length, size = query.shape[2], TILE.get(query.device.type, TILE["cuda"])
    low = torch.finfo(query.dtype).min / 4  # of which two can be added
    offsets = torch.arange(size + 2 * window, device=query.device) - window
    is_far = (torch.arange(size, device=query.device)[:, None] - offsets).abs() > window
    far = is_far.to(query.dtype) * low  # (rows, keys) of a tile
    removed, no_global = is_removed[:, None].to(query.dtype) * low, is_no_global[:, None].to(query.dtype) * low
    for start in range(0, length, size):
        rows = slice(start, min(start + size, length))
        keys = slice(max(start - window, 0), min(rows.stop + window, length))
        first = keys.start - start + window
        local = far[: rows.stop - start, first : first + keys.stop - keys.start] + removed[:, :, keys]
        yield rows, keys, torch.cat([no_global.expand(-1, local.shape[1], -1), local], dim=2)[:, None]


def _attention_weights(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """Return the weights (B, heads, rows, keys), in fp32 or wider."""
    biases = bias.expand(-1, query.shape[1], -1, -1).flatten(0, 1)
    scores = torch.baddbmm(biases, query.flatten(0, 1), key.flatten(0, 1).mT, alpha=query.shape[3] ** -0.5)
    return _softmax(scores.unflatten(0, query.shape[:2]))


def _seeded(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)
