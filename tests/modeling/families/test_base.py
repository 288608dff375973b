"""Every family restores what it changes, and its code travels without this package."""

import copy

import pytest
import torch
from transformers import BertConfig, BertModel

from docsplit.modeling.families.base import Family


def make_encoder():
    torch.manual_seed(0)
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=20)
    return BertModel(config, add_pooling_layer=False).eval()


def _of_second_type(self, input_ids=None, *args, **kwargs):
    kwargs["token_type_ids"] = torch.ones_like(input_ids)
    return type(self).forward(self, input_ids, *args, **kwargs)


FAMILY, IDS = Family(forward=_of_second_type), torch.tensor([[3, 4, 5]])


def test_forward_is_replaced_while_attending_and_put_back():
    encoder = make_encoder()
    plain, expected = encoder(IDS)[0], encoder(IDS, token_type_ids=torch.ones_like(IDS))[0]
    assert (plain - expected).abs().max() > 1e-3
    with FAMILY.attending(encoder):
        assert torch.equal(encoder(IDS)[0], expected)
    assert torch.equal(encoder(IDS)[0], plain)
    with pytest.raises(RuntimeError, match="in between"), FAMILY.attending(encoder):
        raise RuntimeError("in between")
    assert "forward" not in vars(encoder)


def test_what_was_patched_before_stays_so():
    encoder = make_encoder()
    FAMILY.patch_forward(encoder)
    before = vars(encoder)["forward"]
    with FAMILY.attending(encoder):
        assert vars(encoder)["forward"] is before
    assert vars(encoder)["forward"] is before


def test_a_copy_runs_on_its_own_weights():
    encoder = make_encoder()
    FAMILY.patch_forward(encoder)
    twin = copy.deepcopy(encoder)
    with torch.no_grad():
        twin.embeddings.word_embeddings.weight.mul_(2)
    assert (twin(IDS)[0] - encoder(IDS)[0]).abs().max() > 1e-3


def test_an_encoder_that_returns_attention_does_so_eagerly():
    encoder = make_encoder()
    assert encoder.config._attn_implementation != "eager"
    Family().return_attention(encoder)
    assert encoder(IDS, output_attentions=True).attentions[-1].sum(-1).allclose(torch.ones(1, 1, 3))


def test_code_is_joined_and_loses_the_imports_of_this_package(tmp_path):
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("A = 1\n")
    second.write_text(
        "import re\n\nfrom docsplit.data.first import A\n\nB = A + len(re.sub('docsplit', '', 'docsplit.x'))\n"
    )
    Family(code={"both.py": (first, second)}).write_code(tmp_path)
    names = {}
    exec((tmp_path / "both.py").read_text(), names)
    assert (names["A"], names["B"]) == (1, 3)
    assert "from docsplit" not in (tmp_path / "both.py").read_text()


def test_what_reads_tokens_is_the_inner_encoder():
    family, config = Family(inner_encoder="passage_encoder"), BertConfig()
    config.passage_encoder = inner = BertConfig()
    assert family.token_encoder(config) is inner
    assert Family().token_encoder(config) is config
