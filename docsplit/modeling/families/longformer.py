"""Longformer (Beltagy et al. 2020, section 3.1): attention in windows and a global first token, computed in tiles.

`use_blocked_attention(model)` gives attention in tiles to every Longformer in a model, in place: the same numbers, in
less time and memory. Weights, config and checkpoint stay what they are, and `use_transformers_attention(model)` takes
it away again.

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
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LongformerModel
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutputWithPooling,
    LongformerSelfAttention,
)
from transformers.utils import logging

from docsplit.modeling.families.base import Family

logger = logging.get_logger(__name__)

# Queries of a tile. With more, more of its products fall outside of the window; with fewer, there are more of them.
TILE = {"cpu": 160, "cuda": 256}
# Global keys get room for so many at a time: a product with 688 columns is faster than with 673. Not in short texts.
ALIGNMENT = 16
NO_WEIGHTS = f"attention in tiles keeps no weights: {__name__}.use_transformers_attention(model) brings them back."


# --- The family ---


def _with_a_global_token(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """Let the first token attend to all and all to it, unless the caller says otherwise."""
    if input_ids is not None and len(args) < 2 and kwargs.get("global_attention_mask") is None:
        if isinstance(self, BlockedLongformerModel):
            kwargs["first_token_is_global"] = True  # the device is not asked how many global tokens a row has
        else:
            kwargs["global_attention_mask"] = torch.zeros_like(input_ids)
            kwargs["global_attention_mask"][:, 0] = 1
    return type(self).forward(self, input_ids, *args, **kwargs)


class Longformer(Family):
    """Attention in tiles, in place of transformers' own."""

    def length_multiple(self, base_model: Any) -> int:
        """Return the window, to which transformers pads; attention in tiles needs no padding."""
        if isinstance(base_model, BlockedLongformerModel):
            return 1
        windows = base_model.config.attention_window
        return windows if isinstance(windows, int) else max(windows)

    def prepare_for_training(self, model: Any, attn_implementation: str | None = None) -> None:
        """Compute attention in tiles, unless it is to be `eager`: as transformers has it."""
        if attn_implementation != "eager":
            use_blocked_attention(model)

    def prepare_loaded(self, base_model: Any, is_ours: bool) -> None:
        """Compute attention in tiles; only a Longformer of others goes without the global token."""
        if is_ours:
            self.patch_forward(base_model)
        if type(base_model) is LongformerModel:
            use_blocked_attention(base_model)

    def return_attention(self, base_model: Any) -> None:
        """Bring transformers' attention back: tiles keep no weights."""
        use_transformers_attention(base_model)
        super().return_attention(base_model)


LONGFORMER = Longformer(
    forward=_with_a_global_token,
    positions_follow_padding=True,
    has_global_token=True,
    module="longformer_transformer.LongformerTransformer",  # sentence-transformers' own leaves the global token out
    code={"longformer_transformer.py": (Path(__file__).parent / "longformer_transformer.py",)},
    without_packs="a Longformer, whose windows would cross the borders of texts",
    without_onnx="its window attention decides by the length of the text, which ONNX cannot follow",
)


# --- Attention in tiles ---


def use_blocked_attention(model: nn.Module) -> None:
    """Let every Longformer within `model` compute its attention in tiles.

    Raises:
        ValueError: if there is none.
    """
    if not _exchange_classes(model, BLOCKED):
        raise ValueError(f"{type(model).__name__} has no Longformer in it: there is no attention to replace.")


def use_transformers_attention(model: nn.Module) -> None:
    """Undo `use_blocked_attention`."""
    _exchange_classes(model, {blocked: plain for plain, blocked in BLOCKED.items()})


def _exchange_classes(model: nn.Module, classes: dict[type, type]) -> int:
    """Swap classes that differ in methods alone; return the number of modules that have the new class."""
    modules = [module for module in model.modules() if type(module) in {*classes, *classes.values()}]
    for module in modules:
        module.__class__ = classes.get(type(module), type(module))
    return len(modules)


class TokenMasks(NamedTuple):
    """Where padding and global tokens are in rows (B, T) with one text each; G is what the one that has most needs.

    Attributes:
        is_masked: which tokens are padding, (B, T).
        is_global: which tokens are global, (B, T).
        places: where the global tokens are, and some others so that there are as many in each row, (B, G).
        is_place: which of `places` are global tokens, (B, G).
        num_global: as many of the first places are enough.
    """

    is_masked: Tensor
    is_global: Tensor
    places: Tensor
    is_place: Tensor
    num_global: int


def token_masks(is_masked: Tensor, is_global: Tensor, num_global: int | None = None) -> TokenMasks:
    """Find the global tokens of rows. If it is not said how many a row has at most, the device is asked."""
    counts = is_global.sum(dim=1)
    num_global = _largest(counts) if num_global is None else num_global
    alignment = ALIGNMENT if is_masked.shape[1] > 16 * ALIGNMENT else 1
    num_places = -(-num_global // alignment) * alignment  # G; the rest are other tokens, and masked
    places = is_global.long().argsort(dim=1, descending=True, stable=True)[:, :num_places]
    is_place = torch.arange(places.shape[1], device=counts.device) < counts[:, None]
    return TokenMasks(is_masked, is_global, places, is_place, num_global)


@torch.compiler.disable
def _largest(counts: Tensor) -> int:
    return int(counts.max())


class BlockedLongformerModel(LongformerModel):
    """A `LongformerModel` that pads nothing, and makes no (T, T) mask on the way to a (T,) one.

    `config.output_attentions` does not count, with a warning; asking for the weights in a call is an error.
    """

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
        first_token_is_global: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run transformers' `LongformerModel.forward`, without padding to the window and without attention weights.

        Args:
            first_token_is_global: in place of a `global_attention_mask` that says so of each text. Then nothing makes
                the host wait for the device, if there is an `attention_mask`.
        """
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        shape = embedded.shape[:2]
        if padding := -shape[1] % (self.config.chunk_size_feed_forward or 1):  # such chunks must be full
            embedded = F.pad(embedded, (0, 0, 0, padding))
        # Find padding and global tokens, once for all layers
        if attention_mask is None:
            attention_mask = torch.ones(shape, dtype=torch.long, device=embedded.device)
        num_global = None
        if global_attention_mask is None and first_token_is_global:
            global_attention_mask = torch.zeros(shape, dtype=torch.long, device=embedded.device)
            global_attention_mask[:, 0] = num_global = 1
        if global_attention_mask is not None:
            attention_mask = self._merge_to_attention_mask(attention_mask, global_attention_mask)
        attention_mask = F.pad(attention_mask, (0, padding)).long()  # 0: padding, 1: local, 2: global
        rows = token_masks(attention_mask == 0, attention_mask > 1, num_global)
        # Run the layers
        if output_attentions is None and self.config.output_attentions:
            logger.warning_once(f"config.output_attentions is set, but {NO_WEIGHTS}")
        keeps_all = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        all_states = [embedded]
        for layer in self.encoder.layer:
            states = layer(all_states[-1], attention_mask=rows, output_attentions=bool(output_attentions))[0]
            all_states = [*all_states, states] if keeps_all else [states]
        all_states = [states[:, : shape[1]] for states in all_states]
        outputs = LongformerBaseModelOutputWithPooling(
            last_hidden_state=all_states[-1],
            pooler_output=self.pooler(all_states[-1]) if self.pooler is not None else None,
            hidden_states=tuple(all_states) if keeps_all else None,
        )
        return outputs if (self.config.return_dict if return_dict is None else return_dict) else outputs.to_tuple()


class BlockedAttention(LongformerSelfAttention):
    """Self-attention in tiles: (B, T, H) to (B, T, H)."""

    @torch.compiler.disable  # it draws from generators; the layers around it compile
    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: TokenMasks, output_attentions: bool = False, **kwargs: Any
    ) -> tuple[Tensor]:
        """Hidden states (B, T, H) -> attention output (B, T, H), 0 for padding. `attention_mask` says it all.

        Raises:
            ValueError: if the attention weights are wanted, which are never all there.
        """
        if output_attentions:
            raise ValueError(f"output_attentions is True, but {NO_WEIGHTS}")
        is_masked, is_global, places, is_place, num_global = attention_mask
        query, key, value = (
            _split_heads(layer(hidden_states), self.num_heads) for layer in (self.query, self.key, self.value)
        )
        index = places[:, None, :, None].expand(-1, key.shape[1], -1, key.shape[3])
        tiles = Tiles(is_masked | is_global, ~is_place, self.one_sided_attn_window_size, query.dtype)
        dropout = self.dropout if self.training else 0.0
        attended = WindowAttention.apply(
            query, key, value, key.gather(2, index), value.gather(2, index), tiles, dropout
        )
        if num_global:  # adding needs no copy of the gradient
            places, is_place = places[:, :num_global], is_place[:, :num_global]
            from_global = _attend_from_global_tokens(self, hidden_states, places, is_masked).to(attended.dtype)
            rows = torch.arange(len(places), device=places.device)[:, None]
            attended.index_put_((rows, places), from_global.masked_fill(~is_place[:, :, None], 0.0), accumulate=True)
        return (attended,)


BLOCKED: dict[type, type] = {
    LongformerModel: BlockedLongformerModel,
    LongformerSelfAttention: BlockedAttention,
}
for _plain, _blocked in BLOCKED.items():
    _blocked.__name__ = _plain.__name__  # in checkpoints, and by which FSDP and device maps find the layers


class Tiles(NamedTuple):
    """What the tiles of rows are made of.

    Attributes:
        is_removed: which tokens are no keys of a window (padding and global ones), (B, T).
        is_no_global: which of the global keys are none, (B, G).
        window: how far a key of a window may be away.
        dtype: of the bias.
    """

    is_removed: Tensor
    is_no_global: Tensor
    window: int
    dtype: torch.dtype

    def each(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the queries of each tile, its keys nearby, and the bias of scores (B, 1, queries, G + keys)."""
        device, length, window = self.is_removed.device, self.is_removed.shape[1], self.window
        size = TILE.get(device.type, TILE["cuda"])
        low = torch.finfo(self.dtype).min / 4  # nothing is left of a weight, and two of them can be added
        offsets = torch.arange(size + 2 * window, device=device) - window
        far = ((torch.arange(size, device=device)[:, None] - offsets).abs() > window).to(self.dtype) * low
        removed = self.is_removed[:, None].to(self.dtype) * low
        no_global = self.is_no_global[:, None].to(self.dtype) * low
        for start in range(0, length, size):
            rows = slice(start, min(start + size, length))
            keys = slice(max(start - window, 0), min(rows.stop + window, length))
            first = keys.start - start + window
            local = far[: rows.stop - start, first : first + keys.stop - keys.start] + removed[:, :, keys]
            yield rows, keys, torch.cat([no_global.expand(-1, local.shape[1], -1), local], dim=2)[:, None]


class WindowAttention(torch.autograd.Function):
    """Compute attention of queries (B, heads, T, d) to keys near them and to global ones (B, heads, G, d).

    Returns (B, T, heads x d), 0 where no token of a window is.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        global_key: Tensor,
        global_value: Tensor,
        tiles: Tiles,
        dropout: float,
    ) -> Tensor:
        """Keep queries, keys and values for the backward pass, and no scores."""
        ctx.save_for_backward(query, key, value, global_key, global_value)
        seed = int(torch.randint(2**62, ())) if dropout else 0  # from the generator that checkpointing restores
        ctx.options = (tiles, dropout, seed)
        generator = torch.Generator(query.device).manual_seed(seed) if dropout else None
        batch, heads, length, head_dim = query.shape
        output = query.new_empty(batch, length, heads * head_dim)
        for rows, keys, bias in tiles.each():
            tile, its_keys = query[:, :, rows], torch.cat([global_key, key[:, :, keys]], dim=2)
            its_values = torch.cat([global_value, value[:, :, keys]], dim=2)
            if generator is None:
                attended = F.scaled_dot_product_attention(tile, its_keys, its_values, attn_mask=bias)
            else:  # for which PyTorch has no fused kernel on a CPU
                weights = _attention_weights(tile, its_keys, bias)
                weights *= _draw_kept(weights, dropout, generator)
                attended = weights.to(tile.dtype) @ its_values
            output[:, rows] = attended.transpose(1, 2).flatten(2)
        return output.masked_fill_(tiles.is_removed[:, :, None], 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the scores of one tile after another again."""
        query, key, value, global_key, global_value = ctx.saved_tensors
        dtype = torch.promote_types(query.dtype, torch.float32)  # in which the parts from several tiles are summed
        grad_query, num_global = torch.empty_like(query), global_key.shape[2]
        grad_key, grad_value, grad_global_key, grad_global_value = (
            torch.zeros_like(states, dtype=dtype) for states in (key, value, global_key, global_value)
        )
        tiles, dropout, seed = ctx.options
        generator = torch.Generator(query.device).manual_seed(seed) if dropout else None
        scale = query.shape[3] ** -0.5
        for rows, keys, bias in tiles.each():
            tile, its_keys = query[:, :, rows], torch.cat([global_key, key[:, :, keys]], dim=2)
            its_values = torch.cat([global_value, value[:, :, keys]], dim=2)
            grad = grad_outputs[0][:, rows].masked_fill(tiles.is_removed[:, rows, None], 0.0)
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
        return grad_query, *(gradient.to(query.dtype) for gradient in gradients), None, None


def _split_heads(states: Tensor, num_heads: int) -> Tensor:
    """Split heads, (B, T, H) to (B, heads, T, d), such that a tile is a view for a batched product."""
    states = states.unflatten(2, (num_heads, -1)).transpose(1, 2)
    return states if len(states) == 1 else states.contiguous()


def _softmax(scores: Tensor) -> Tensor:
    """Compute it in fp32 or wider."""
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _attention_weights(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """Return the weights (B, heads, rows, keys), in fp32 or wider."""
    biases = bias.expand(-1, query.shape[1], -1, -1).flatten(0, 1)
    scores = torch.baddbmm(biases, query.flatten(0, 1), key.flatten(0, 1).mT, alpha=query.shape[3] ** -0.5)
    return _softmax(scores.unflatten(0, query.shape[:2]))


def _draw_kept(weights: Tensor, dropout: float, generator: torch.Generator) -> Tensor:
    """Draw what dropout multiplies the weights by, from sixteen random bits each: faster than `bernoulli_`."""
    random = torch.empty(-(-weights.numel() // 4), dtype=torch.int64, device=weights.device)
    random.random_(-(2**63), None, generator=generator)
    dropped = min(max(round(dropout * 2**16), 1), 2**16 - 1)  # of 2 ** 16
    is_kept = random.view(torch.int16)[: weights.numel()].view(weights.shape) >= dropped - 2**15
    return is_kept.to(weights.dtype).mul_(2**16 / (2**16 - dropped))


def _attend_from_global_tokens(self: Any, hidden_states: Tensor, places: Tensor, is_masked: Tensor) -> Tensor:
    """Return what the tokens at `places` (B, G) get from all tokens, (B, G, H)."""
    source = hidden_states.gather(1, places[:, :, None].expand(-1, -1, hidden_states.shape[2]))
    query = _split_heads(self.query_global(source), self.num_heads) / math.sqrt(self.head_dim)  # (B, heads, G, d)
    through_queries = places.shape[1] < self.head_dim and all(
        _is_plain(layer) and layer.weight.device == hidden_states.device  # nothing offloaded
        for layer in (self.key_global, self.value_global)
    )
    heads = (self.num_heads, self.head_dim)
    if through_queries:
        weight, bias = self.key_global.weight.unflatten(0, heads), self.key_global.bias.view(*heads, 1)
        through = torch.einsum("bngd,ndh->bngh", query, weight)  # `@` would copy the weight for each row
        scores = through.flatten(1, 2) @ hidden_states.mT  # (B, heads x G, T)
        scores = scores.unflatten(1, (self.num_heads, -1)) + query @ bias
    else:
        scores = query @ _split_heads(self.key_global(hidden_states), self.num_heads).mT  # (B, heads, G, T)
    scores = scores.masked_fill(is_masked[:, None, None], torch.finfo(scores.dtype).min)
    weights = _softmax(scores).to(scores.dtype)
    weights = F.dropout(weights, self.dropout, self.training)
    if through_queries:
        weight, bias = self.value_global.weight.unflatten(0, heads), self.value_global.bias.view(heads[0], 1, heads[1])
        mixed = (weights.flatten(1, 2) @ hidden_states).unflatten(1, (self.num_heads, -1))  # (B, heads, G, H)
        output = torch.einsum("bngh,ndh->bngd", mixed, weight) + weights.sum(dim=-1, keepdim=True) * bias
    else:
        output = weights @ _split_heads(self.value_global(hidden_states), self.num_heads)
    return output.transpose(1, 2).flatten(2)


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer only has its weight and bias: no LoRA, no quantised or pruned weight, no hook."""
    is_hooked = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer) is nn.Linear and type(layer.weight) in (nn.Parameter, Tensor) and not is_hooked
