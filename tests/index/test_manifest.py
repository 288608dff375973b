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
from docsplit.runtime.files import CHECKSUM, Damaged, FileRecord, write_sealed

ENCODER = {"name": "a", "hash": "0123456789", "pooling": "mean", "given": {"prompt": None}}
NAME, WORDS, DELETED = "0123456789abcdef" * 2, "words-01234567", "deleted-89abcdef.npy"
INVERTED = InvertedFile("approximate-01234567.faiss", [NAME], [70], 8, 0.985)
RECORDS = {f"segments/{NAME}/files.json": FileRecord(12, "ab")}
FILES = [
    Manifest(4, ENCODER, 100, None, [SegmentEntry(NAME, None, 5)], files=RECORDS),
    Manifest(4, ENCODER, 20, INVERTED, [SegmentEntry(NAME, DELETED, 4)]),
    Manifest(4, ENCODER, 100, None, [SegmentEntry(NAME, None, 5)], WordsEntry(None, 5)),
    Manifest(4, ENCODER, 100, None, [SegmentEntry(NAME, None, 7)], WordsEntry(WORDS, 6)),
    Manifest(4, ENCODER, 100, None, [SegmentEntry(NAME, None, 5)], None, TokensEntry(100, 90, 26)),
    Manifest(4, ENCODER, 100, None, [], is_built=False),
]
WRITTEN = """{
 "version": 4,
 "encoder": {
  "name": "a"
 },
 "passage_words": 100,
 "approximate": null,
 "segments": [
  {
   "name": "0123456789abcdef0123456789abcdef",
   "deleted": null,
   "documents": 5
  }
 ],
 "files": {
  "segments/0123456789abcdef0123456789abcdef/files.json": {
   "size": 12,
   "xxh3": "ab"
  }
 },
 "is_built": true,
 "checksum": "2512111ec6be3cf319ac423fe1da7cf0"
}
"""


@pytest.mark.parametrize("manifest", FILES)
def test_a_manifest_comes_back(manifest, tmp_path):
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest


def test_the_file_is_as_it_always_was(tmp_path):
    Manifest(4, {"name": "a"}, 100, None, [SegmentEntry(NAME, None, 5)], files=RECORDS).write(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == WRITTEN
    FILES[1].write(tmp_path)
    approximate = json.loads((tmp_path / "manifest.json").read_text())["approximate"]
    assert list(approximate) == ["file", "segments", "sizes", "probes", "recall"]
    FILES[2].write(tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["words"] == {"folder": None, "documents": 5}


def test_files_are_recorded_once(tmp_path):
    """What has a record keeps it: a file that has changed since is not recorded as sound."""
    for name in (WORDS, f"segments/{NAME}"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "files.json").write_text(name)
    for name in (f"segments/{NAME}/{DELETED}", INVERTED.file):
        (tmp_path / name).write_text(name)
    manifest = Manifest(
        4, ENCODER, 100, INVERTED, [SegmentEntry(NAME, DELETED, 4)], WordsEntry(WORDS, 6), files=RECORDS
    )
    recorded = manifest.recorded(tmp_path)
    names = [INVERTED.file, f"segments/{NAME}/{DELETED}", f"segments/{NAME}/files.json", f"{WORDS}/files.json"]
    assert sorted(recorded) == sorted(names)
    for name in names:
        assert recorded[name] == RECORDS.get(name, FileRecord.of(tmp_path / name))


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
        (
            "{",
            "manifest.json is damaged: .*: line 1 .*Restore the index from a copy, or build it again in a new folder",
        ),
        ("[]", "manifest.json is damaged: it holds no JSON object"),
        ('{"version": 2}', "an index of version 2, this is version 4: build it again"),
        ('{"version": 4}', "manifest.json has no checksum"),
        ('{"version": 3}', "manifest.json is damaged: it is no manifest of an index"),
        ('{"version": 3, "checksum": ""}', "does not fit its checksum"),
    ],
)
def test_what_cannot_be_read_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_manifest(tmp_path)


def test_a_later_version_is_told_from_damage(tmp_path):
    write_sealed(tmp_path / "manifest.json", {"version": 5})
    with pytest.raises(ValueError, match="an index of version 5, this is version 4"):
        read_manifest(tmp_path)
    FILES[0].write(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"version": 4', '"version": 5'))
    with pytest.raises(Damaged, match="does not fit its checksum"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"segments": [{"name": "../precious", "deleted": None, "documents": 5}]},
        {"segments": [{"name": NAME, "deleted": "../../thesis.txt", "documents": 5}]},
        {"segments": [{"name": NAME, "deleted": None, "documents": "5"}]},
        {"segments": [{"name": NAME}]},
        {"segments": [NAME]},
        {"segments": 5},
        {"segments": None},
        {"words": {"folder": "words-of-mine", "documents": 5}},
        {"words": {"folder": 5, "documents": 5}},
        {"words": "words"},
        {"approximate": {"file": "x.faiss"}},
        {"passage_words": 0},
        {"passage_words": None},
        {"encoder": None},
        {"files": 5},
    ],
)
@pytest.mark.parametrize("version", [3, 4])
def test_names_that_no_change_writes_are_refused(change, version, tmp_path):
    """Also if the checksum fits, or if there is none: what is named may be removed one day."""
    FILES[0].write(tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text()) | change | {"version": version}
    del content[CHECKSUM]
    if version == 4:
        write_sealed(tmp_path / "manifest.json", content)
    else:
        (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(Damaged, match=r"manifest\.json is damaged: .*Restore"):
        read_manifest(tmp_path)


def test_another_encoder_is_named_with_what_differs():
    check_encoder(FILES[0], ENCODER | {"name": "moved"})
    with pytest.raises(ValueError, match=r"with a \(01234567\), not with b \(98765432\): other pooling\. Vectors"):
        check_encoder(FILES[0], ENCODER | {"name": "b", "hash": "9876543210", "pooling": "cls"})
    with pytest.raises(ValueError, match=r"\(98765432\)\. Vectors"):  # the weights alone
        check_encoder(FILES[0], ENCODER | {"hash": "9876543210"})
