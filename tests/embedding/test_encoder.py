"""One encoder from its name to vectors: it embeds as a fresh load would, whatever was done with it before."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from docsplit.embedding import encoder as encoder_module
from docsplit.embedding.attention import attention_to_tokens
from docsplit.embedding.encode import embed_documents, identity
from docsplit.embedding.encoder import Encoder, embed, load_groups
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.lexical_ridge import save_with_words
from docsplit.modeling.encoder_with_words import Words
from docsplit.modeling.loading import load_encoder

TEXTS = ["a ship", "the captain of a ship", "", "a ship"]


def options(**given):
    return EncoderArguments(["unused"], dtype="float32", **given)


def test_each_text_is_embedded_once_and_parts_come_back_as_parts(checkpoint, monkeypatch):
    encoder, embedded, embed = Encoder(str(checkpoint), options()), [], embed_documents

    def count(model, texts, **more):
        embedded.extend(texts)
        return embed(model, texts, **more)

    monkeypatch.setattr(encoder_module, "embed_documents", count)
    parts, facts = encoder.embed_parts({"train": TEXTS[:1], "validation": [], "test": TEXTS[1:]})
    assert embedded == TEXTS[:3]
    assert {name: len(part) for name, part in parts.items()} == {"train": 1, "validation": 0, "test": 3}
    expected, _ = embed(load_encoder(str(checkpoint)), TEXTS, dtype=torch.float32)
    np.testing.assert_allclose(np.concatenate([*parts.values()]), expected, atol=1e-6)
    assert [facts[name] for name in ("pooling", "max_seq_length", "dtype", "prompt")] == ["mean", 40, "float32", ""]


def test_a_copy_is_what_a_fresh_load_would_be_and_leaves_the_encoder_as_it_was(checkpoint):
    encoder = Encoder(str(checkpoint), options())
    before, fresh = encoder.embed(TEXTS), load_encoder(str(checkpoint))
    assert identity(encoder.copy()) == identity(fresh)
    changed = encoder.copy()
    list(attention_to_tokens(changed, TEXTS[:2], "", 64))  # by eager attention
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.zero_()
    assert encoder.model[0].model.config._attn_implementation == fresh[0].model.config._attn_implementation
    np.testing.assert_array_equal(encoder.embed(TEXTS), before)
    np.testing.assert_array_equal(embed_documents(fresh, TEXTS, dtype=torch.float32)[0], before)


def test_checking_warns_of_another_pooling_and_names_who_cannot_embed(checkpoint, caplog):
    encoder = Encoder(str(checkpoint), options(override_pooling="max"))
    encoder.check(TEXTS[:2])
    row = encoder.facts(1.5)
    assert (row["pooling"], row["pooling_of_checkpoint"], row["embedding_seconds"]) == ("max", "mean", 1.5)
    assert f"{checkpoint} brings mean pooling; max is used (--override_pooling, or @max)." in caplog.text
    with torch.no_grad():
        encoder.model[0].model.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=f"{checkpoint}: .*embeddings are not finite"):
        encoder.check(TEXTS[:2])


def test_an_index_finds_the_same_encoder_again(checkpoint):
    given = EncoderArguments(["unused"], max_seq_length=12, prompt="read: ", query_prompt="read: ")
    encoder = Encoder(str(checkpoint), given)
    again = Encoder.of(encoder.description)
    assert again.description == encoder.description
    assert encoder.description["given"] == {"pooling": None, "max_seq_length": 12}
    assert (encoder.description["dimension"], encoder.description["similarity"]) == (32, "cosine")
    vectors = again.embed_for_index(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(vectors[0] @ again.embed_query("a ship"), 1, atol=1e-5)
    other = Encoder(str(checkpoint))
    other.model.similarity_fn_name = "euclidean"
    with pytest.raises(ValueError, match="an index compares by cosine or dot product alone"):
        other.description  # noqa: B018


def test_vectors_in_the_cache_are_those_of_their_prompt(checkpoint, tmp_path):
    found = []
    for prompt in ("", "bread: ", "a sail: ", ""):
        given = options(prompt=prompt, query_prompt=f"{prompt}a storm ")
        cached, alone = Encoder(str(checkpoint), given, tmp_path), load_encoder(str(checkpoint))
        found.append((cached.embed(TEXTS), cached.embed_queries(TEXTS)[0]))
        for vectors, before in zip(found[-1], (prompt, f"{prompt}a storm ")):
            np.testing.assert_allclose(vectors, embed(alone, TEXTS, prompt=before), atol=1e-2)  # of bfloat16
    np.testing.assert_array_equal(found[0], found[-1])
    distinct = np.stack([vectors[0] for of_prompt in found[:-1] for vectors in of_prompt])
    assert np.abs(distinct[:, None] - distinct).max(axis=-1)[~np.eye(6, dtype=bool)].min() > 1e-3


def test_each_encoder_pools_and_is_prompted_as_its_argument_states(checkpoint, headless, caplog):
    """Each equals a run of its own; an encoder's own pooling is replaced, one that it lacks is chosen."""
    ours, plain = str(checkpoint), str(headless)
    alone = {
        plain: (plain, {"pooling": "cls"}),
        f"mean={plain}@mean": (plain, {"pooling": "mean"}),
        f"{plain}@mean@prompt=a ship: ": (plain, {"pooling": "mean", "prompt": "a ship: "}),
        f"{ours}@max": (ours, {"override_pooling": "max"}),
        f"{ours}@mean": (ours, {}),
    }
    groups = load_groups([*alone, f"{plain}@mean"], options(pooling="cls", prompt="tide "))
    assert groups[1].encoders == groups[-1].encoders  # loaded once
    for group, (name, own) in zip(groups, alone.values()):
        (encoder,), expected = group.encoders, Encoder(name, options(**{"prompt": "tide "} | own))
        assert group.members == [name]
        np.testing.assert_allclose(encoder.embed(TEXTS[:2]), expected.embed(TEXTS[:2]), atol=1e-6)
        encoder.check(TEXTS[:2])
        assert encoder.facts(0.0).get("pooling_of_checkpoint") == ("mean" if "max" in group.name else None)
    assert caplog.text.count("brings mean pooling; max is used (--override_pooling, or @max).") == 1


@pytest.mark.parametrize("given", [None, 10])
def test_members_of_unlike_lengths_are_named(checkpoint, tmp_path, caplog, given):
    folders = [str(tmp_path / f"seed-{seed}") for seed in range(2)]
    for folder, length in zip(folders, (12, 16)):
        load_encoder(str(checkpoint), max_seq_length=length).save(folder)
    (group,) = load_groups([f"A={','.join(folders)}"], options(max_seq_length=given))
    group.check(["A text."])
    assert ("read 12 and 16 tokens: --max_seq_length" in caplog.text) is (given is None)


@pytest.fixture
def worded(checkpoint, tmp_path):
    """A folder of the checkpoint with words."""
    model = load_encoder(str(checkpoint), device="cpu")
    vectors = torch.randn(100, 32, generator=torch.Generator().manual_seed(0))
    words = Words(model.tokenizer.backend_tokenizer, torch.arange(5, 105), vectors)
    save_with_words(model, words, 0.5, tmp_path / "words")
    return tmp_path / "words"


def test_a_row_has_the_weight_of_words_only_where_there_are_words(checkpoint, worded):
    row = Encoder(str(checkpoint), options()).facts(1.5)
    assert not {"words", "pooling_of_checkpoint"} & row.keys()
    row, plain = Encoder(str(worded), options()).facts(1.5), row
    assert row["num_parameters"] > plain["num_parameters"]
    assert (row["words"], row["pooling"], row["max_seq_length"]) == (0.5, "mean", 40)
    with pytest.raises(ValueError, match=f"{worded}: --override_pooling max would change vectors that words"):
        Encoder(str(worded), options(override_pooling="max"))


def test_an_index_of_an_encoder_with_words_has_plain_queries(checkpoint, worded):
    encoder, plain = Encoder(str(worded), options()), Encoder(str(checkpoint), options())
    assert Encoder.of(encoder.description).description == encoder.description
    assert encoder.description["hash"] != plain.description["hash"]
    assert {**encoder.description, "name": "", "hash": ""} == {**plain.description, "name": "", "hash": ""}
    np.testing.assert_allclose(encoder.embed_query(TEXTS[0]), plain.embed_query(TEXTS[0]), atol=1e-6)
    assert np.abs(encoder.embed_for_index(TEXTS) - plain.embed_for_index(TEXTS))[0].max() > 0.1
    copy = encoder.copy()
    np.testing.assert_array_equal(embed_documents(copy, TEXTS, dtype=torch.float32)[0], encoder.embed(TEXTS))


def test_embed_takes_a_loaded_encoder_a_folder_and_texts_by_id(checkpoint, tmp_path):
    expected = embed(str(checkpoint), TEXTS)
    (tmp_path / "notes").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "notes" / f"{number}.txt").write_text(text)
    model = SentenceTransformer(str(checkpoint))
    for documents in (tmp_path / "notes", dict(enumerate(TEXTS)), iter(TEXTS)):
        np.testing.assert_allclose(embed(model, documents), expected, atol=1e-6)
    assert embed(model, []).shape == (0, expected.shape[1])
    with pytest.raises(ValueError, match=r"none\.jsonl"):
        embed(model, tmp_path / "none.jsonl")
