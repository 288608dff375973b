"""The manifest: what is written is what users have, and what is not ours is refused with a remedy."""

import json

import pytest

from docsplit.index.manifest import (
    InvertedFile,
    Manifest,
    SegmentEntry,
    TokensEntry,
    WordsEntry,
    check_encoder,
    read_manifest,
)

ENCODER = {"name": "a", "hash": "0123456789", "pooling": "mean", "given": {"prompt": None}}
FILES = [
    Manifest(3, ENCODER, 100, None, [SegmentEntry("s", None, 5)]),
    Manifest(3, ENCODER, 20, InvertedFile("x.faiss", ["s"], [70], 8, 0.985), [SegmentEntry("s", "deleted-1.npy", 4)]),
    Manifest(3, ENCODER, 100, None, [SegmentEntry("s", None, 5)], WordsEntry(None, 5)),
    Manifest(3, ENCODER, 100, None, [SegmentEntry("s", None, 7)], WordsEntry("words-1", 6)),
    Manifest(3, ENCODER, 100, None, [SegmentEntry("s", None, 5)], None, TokensEntry(100, 90, 26)),
]
WRITTEN = """{
 "version": 3,
 "encoder": {
  "name": "a"
 },
 "passage_words": 100,
 "approximate": null,
 "segments": [
  {
   "name": "s",
   "deleted": null,
   "documents": 5
  }
 ]
}
"""


@pytest.mark.parametrize("manifest", FILES)
def test_a_manifest_comes_back(manifest, tmp_path):
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest


def test_the_file_is_as_it_always_was(tmp_path):
    Manifest(3, {"name": "a"}, 100, None, [SegmentEntry("s", None, 5)]).write(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == WRITTEN
    FILES[1].write(tmp_path)
    approximate = json.loads((tmp_path / "manifest.json").read_text())["approximate"]
    assert list(approximate) == ["file", "segments", "sizes", "probes", "recall"]
    FILES[2].write(tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert (list(content)[-1], content["words"]) == ("words", {"folder": None, "documents": 5})


def test_what_share_of_the_tokens_is_read_is_said_where_it_is_not_all():
    assert TokensEntry(100, 100, 100).sentence(256, has_words=False) is None
    assert TokensEntry(100_000, 100_000, 26_000).sentence(256, has_words=True) == (
        "The encoder reads 256 tokens at a time. Queries search all of your documents' tokens, in passages. Clusters, "
        "duplicates and maps see 26 %, the beginnings, and the words of all. To read more, build with an encoder that "
        "reads longer texts."
    )
    cut = TokensEntry(100_000, 99_999, 26_000).sentence(1024, has_words=False)
    assert "reads 1,024 tokens" in cut
    assert "search 99.9 % of" in cut
    assert "fewer --passage_words, or an encoder" in cut


def test_where_words_come_from_is_a_sentence():
    assert "the index had 1,200 documents when they came" in WordsEntry(None, 1200).sentence()
    assert WordsEntry("words-1", 1200).sentence().endswith("words that were fitted on 1,200 documents of this index.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no index in .*: make one with `python search.py build`"),
        ("{", "cannot be read .*: build the index again"),
        ("[]", "cannot be read .*: build the index again"),
        ('{"version": 99}', "an index of version 99, this is version 3: build it again"),
    ],
)
def test_what_cannot_be_read_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_manifest(tmp_path)


def test_another_encoder_is_named_with_what_differs():
    check_encoder(FILES[0], ENCODER | {"name": "moved"})
    with pytest.raises(ValueError, match=r"with a \(01234567\), not with b \(98765432\): other pooling\. Vectors"):
        check_encoder(FILES[0], ENCODER | {"name": "b", "hash": "9876543210", "pooling": "cls"})
    with pytest.raises(ValueError, match=r"\(98765432\)\. Vectors"):  # the weights alone
        check_encoder(FILES[0], ENCODER | {"hash": "9876543210"})
