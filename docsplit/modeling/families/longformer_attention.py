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

Several texts in one row, without padding: `docsplit.modeling.families.longformer_packed`.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LongformerModel
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutput,
    LongformerBaseModelOutputWithPooling,
    LongformerEncoder,
    LongformerSelfAttention,
)
from transformers.utils import logging

from docsplit.modeling.families.longformer_packed import (
    PackedRow,
    attend_from_first_tokens,
    attend_in_windows,
    packed_row,
)
from docsplit.modeling.families.longformer_tiles import PaddedTiles, WindowAttention, is_plain, softmax, split_heads

logger = logging.get_logger(__name__)

# Global keys get room for so many at a time: a product with 688 columns is faster than with 673. Not in short texts.
ALIGNMENT = 16


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


class BlockedLongformerModel(LongformerModel):
    """A `LongformerModel` that pads nothing, and makes no (T, T) mask on the way to a (T,) one.

    It also reads several texts that lie one after another in one row (`cu_seq_lens_q`).
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
        first_token_is_global: bool = False,
        cu_seq_lens_q: Tensor | None = None,
        max_length_q: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run transformers' `LongformerModel.forward`, without padding to the window and without attention weights.

        Args:
            first_token_is_global: in place of a `global_attention_mask` that says so of each text. Then nothing makes
                the host wait for the device, if there is an `attention_mask` or a packed row.
            cu_seq_lens_q: where each text of a packed row (1, N) begins, and where the last one ends, (S + 1,). It
                may end with repeats. Then there are `position_ids`, no masks, and nothing is pooled.
            max_length_q: no text of a packed row has more tokens.

        Raises:
            ValueError: for arguments that do not go together.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        if cu_seq_lens_q is not None and (
            position_ids is None or attention_mask is not None or global_attention_mask is not None
        ):
            raise ValueError("A packed row (cu_seq_lens_q) needs position_ids, and takes no masks.")
        if input_ids is not None and cu_seq_lens_q is None:
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        embedded = self.embeddings(
            input_ids=input_ids,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
        )
        if padding := -embedded.shape[1] % (self.config.chunk_size_feed_forward or 1):  # such chunks must be full
            embedded = F.pad(embedded, (0, 0, 0, padding))
        layout: PaddedRows | PackedRow
        if cu_seq_lens_q is not None:
            if len(embedded) != 1:
                raise ValueError(f"Packed texts (cu_seq_lens_q) lie in one row, and here are {len(embedded)}.")
            layout = packed_row(cu_seq_lens_q, embedded.shape[1], max_length_q, first_token_is_global)
        else:
            layout = self._padded_rows(embedded, padding, attention_mask, global_attention_mask, first_token_is_global)
        if output_attentions is None and self.config.output_attentions:
            logger.warning_once(
                "config.output_attentions is set, but a Longformer with blocked attention returns none. "
                "docsplit.modeling.families.longformer_attention.use_transformers_attention(model) brings them back."
            )
        return_dict = self.config.return_dict if return_dict is None else return_dict
        outputs = self.encoder(
            embedded,
            attention_mask=layout,
            padding_len=padding,
            output_attentions=bool(output_attentions),
            output_hidden_states=(
                self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
            ),
            return_dict=return_dict,
        )
        pooled = self.pooler(outputs[0]) if self.pooler is not None and cu_seq_lens_q is None else None
        if not return_dict:
            return outputs[0], pooled, *outputs[1:]
        return LongformerBaseModelOutputWithPooling(pooler_output=pooled, **outputs)

    def _padded_rows(
        self,
        embedded: Tensor,
        padding: int,
        attention_mask: Tensor | None,
        global_attention_mask: Tensor | None,
        first_token_is_global: bool,
    ) -> "PaddedRows":
        shape = (len(embedded), embedded.shape[1] - padding)
        if attention_mask is None:
            attention_mask = torch.ones(shape, dtype=torch.long, device=embedded.device)
        if global_attention_mask is None and first_token_is_global:
            global_attention_mask = torch.zeros(shape, dtype=torch.long, device=embedded.device)
            global_attention_mask[:, 0] = 1
        else:
            first_token_is_global = False  # but what the mask says
        if global_attention_mask is not None:
            attention_mask = self._merge_to_attention_mask(attention_mask, global_attention_mask)
        attention_mask = F.pad(attention_mask, (0, padding)).long()  # 0: padding, 1: local, 2: global
        return padded_rows(attention_mask == 0, attention_mask > 1, 1 if first_token_is_global else None)


BlockedLongformerModel.__name__ = "LongformerModel"  # which a checkpoint says of itself


class PaddedRows(NamedTuple):
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


def padded_rows(is_masked: Tensor, is_global: Tensor, num_global: int | None = None) -> PaddedRows:
    """Find the global tokens of rows. If it is not said how many a row has at most, the device is asked."""
    counts = is_global.sum(dim=1)
    num_global = _largest(counts) if num_global is None else num_global
    alignment = ALIGNMENT if is_masked.shape[1] > 16 * ALIGNMENT else 1
    num_places = -(-num_global // alignment) * alignment  # G; the rest are other tokens, and masked
    places = is_global.long().argsort(dim=1, descending=True, stable=True)[:, :num_places]
    is_place = torch.arange(places.shape[1], device=counts.device) < counts[:, None]
    return PaddedRows(is_masked, is_global, places, is_place, num_global)


@torch.compiler.disable
def _largest(counts: Tensor) -> int:
    return int(counts.max())


class BlockedEncoder(LongformerEncoder):
    """The layers, which all get the same `PaddedRows` or `PackedRow`."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: PaddedRows | PackedRow,
        padding_len: int = 0,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        return_dict: bool = True,
    ) -> Any:
        """Run one layer after another, as transformers does, but ask the device nothing."""
        all_states: tuple[Tensor, ...] = (hidden_states,)
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask=attention_mask, output_attentions=output_attentions)[0]
            all_states = (*all_states, hidden_states) if output_hidden_states else (hidden_states,)
        all_states = tuple(states[:, : states.shape[1] - padding_len] for states in all_states)
        if not return_dict:
            return (all_states[-1], all_states) if output_hidden_states else all_states
        return LongformerBaseModelOutput(
            last_hidden_state=all_states[-1], hidden_states=all_states if output_hidden_states else None
        )


BlockedEncoder.__name__ = "LongformerEncoder"


class BlockedAttention(LongformerSelfAttention):
    """Self-attention in tiles: (B, T, H) to (B, T, H)."""

    @torch.compiler.disable  # it draws from generators; the layers around it compile
    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: PaddedRows | PackedRow,
        is_index_masked: None = None,
        is_index_global_attn: None = None,
        is_global_attn: None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """Hidden states (B, T, H) -> attention output (B, T, H), 0 for padding. `attention_mask` says it all.

        Raises:
            ValueError: if the attention weights are wanted, which are never all there.
        """
        if output_attentions:
            raise ValueError(
                "The blocked attention of a Longformer keeps no attention weights (output_attentions=True): call "
                "docsplit.modeling.families.longformer_attention.use_transformers_attention(model) before."
            )
        query, key, value = (layer(hidden_states) for layer in (self.query, self.key, self.value))
        dropout, window = self.dropout if self.training else 0.0, self.one_sided_attn_window_size
        if isinstance(attention_mask, PackedRow):
            attended = attend_in_windows(query, key, value, attention_mask, self.num_heads, window, dropout)
            if attention_mask.first_token_is_global:  # the rows of global tokens are 0 so far
                from_global = attend_from_first_tokens(self, hidden_states, attention_mask)
                attended.index_add_(1, attention_mask.firsts, from_global.to(attended.dtype)[None])
            return (attended,)
        is_masked, is_global, places, is_place, num_global = attention_mask
        query, key, value = (split_heads(states, self.num_heads) for states in (query, key, value))
        is_removed = is_masked | is_global
        attended = WindowAttention.apply(
            query,
            key,
            value,
            _take(key, places),
            _take(value, places),
            is_removed,
            PaddedTiles(is_removed, ~is_place, window, query.dtype),
            dropout,
        )
        if num_global:  # adding needs no copy of the gradient
            places, is_place = places[:, :num_global], is_place[:, :num_global]
            from_global = _attend_from_global_tokens(self, hidden_states, places, is_masked).to(attended.dtype)
            rows = torch.arange(len(places), device=places.device)[:, None]
            attended.index_put_((rows, places), from_global.masked_fill(~is_place[:, :, None], 0.0), accumulate=True)
        return (attended,)


BlockedAttention.__name__ = "LongformerSelfAttention"  # by which FSDP and device maps find the layers


BLOCKED: dict[type, type] = {
    LongformerModel: BlockedLongformerModel,
    LongformerEncoder: BlockedEncoder,
    LongformerSelfAttention: BlockedAttention,
}


def _take(states: Tensor, places: Tensor) -> Tensor:
    """Pick the states (B, heads, T, d) at the places (B, G): (B, heads, G, d)."""
    index = places[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, index)


def _attend_from_global_tokens(self: Any, hidden_states: Tensor, places: Tensor, is_masked: Tensor) -> Tensor:
    """Return what the tokens at `places` (B, G) get from all tokens, (B, G, H)."""
    source = hidden_states.gather(1, places[:, :, None].expand(-1, -1, hidden_states.shape[2]))
    query = split_heads(self.query_global(source), self.num_heads) / math.sqrt(self.head_dim)  # (B, heads, G, d)
    through_queries = places.shape[1] < self.head_dim and all(
        is_plain(layer) and layer.weight.device == hidden_states.device  # nothing offloaded
        for layer in (self.key_global, self.value_global)
    )
    if through_queries:
        heads = (self.num_heads, self.head_dim)
        weight, bias = self.key_global.weight.unflatten(0, heads), self.key_global.bias.view(*heads, 1)
        through = torch.einsum("bngd,ndh->bngh", query, weight)  # `@` would copy the weight for each row
        scores = through.flatten(1, 2) @ hidden_states.mT  # (B, heads x G, T)
        scores = scores.unflatten(1, (self.num_heads, -1)) + query @ bias
    else:
        scores = query @ split_heads(self.key_global(hidden_states), self.num_heads).mT  # (B, heads, G, T)
    scores = scores.masked_fill(is_masked[:, None, None], torch.finfo(scores.dtype).min)
    weights = softmax(scores).to(scores.dtype)
    weights = F.dropout(weights, self.dropout, self.training)
    if through_queries:
        weight, bias = self.value_global.weight.unflatten(0, heads), self.value_global.bias.view(heads[0], 1, heads[1])
        mixed = (weights.flatten(1, 2) @ hidden_states).unflatten(1, (self.num_heads, -1))  # (B, heads, G, H)
        output = torch.einsum("bngh,ndh->bngd", mixed, weight) + weights.sum(dim=-1, keepdim=True) * bias
    else:
        output = weights @ split_heads(self.value_global(hidden_states), self.num_heads)
    return output.transpose(1, 2).flatten(2)
