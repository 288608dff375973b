"""Documents of a corpus, or of an index, with their titles, labels and ids."""

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value

from docsplit.data.readers.base import Document
from docsplit.embedding.encoder import Encoder
from docsplit.explorer.documents import documents_of_index, read_explored
from docsplit.index.changes import build
from docsplit.runtime.vectors import unit

LONG_TITLE = " ".join(f"word{number}" for number in range(60))


def test_labels_have_the_names_of_the_data_set(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["sea", "land"])})
    rows = Dataset.from_dict({"text": ["a ship", "a tree", "an anchor"], "label": [0, 1, 0]}, features=features)
    rows.to_parquet(tmp_path / "documents.parquet")
    documents = read_explored(str(tmp_path / "documents.parquet"), "text", None, 10)
    assert documents.labels == ["sea", "land", "sea"]


def test_labels_of_a_table_are_texts_and_an_empty_one_is_none(tmp_path):
    (tmp_path / "documents.csv").write_text("text,label\na,01\nb,1.0\n1984,NA\nc,\n")
    assert read_explored(str(tmp_path / "documents.csv"), "text", None, 10).labels == ["01", "1.0", "NA", "None"]


def test_texts_are_read_in_the_encoding_that_is_named(tmp_path):
    (tmp_path / "words.txt").write_bytes("жук\nлук\nсук\n".encode("koi8-r"))
    assert read_explored(str(tmp_path / "words.txt"), "text", None, 10, "koi8-r").texts == ["жук", "лук", "сук"]


def test_a_folder_of_files_has_their_titles_and_a_label_wants_a_table(tmp_path):
    (tmp_path / "a.md").write_text("# The harbour\n\nBoats.")
    (tmp_path / "b.html").write_text("<title>Sails</title><p>Torn.")
    (tmp_path / "c.csv").write_text("text,title,topic\nA rope.,Ropes,sea\nA tree.,Trees,land\nAn oak.,Oaks,land\n")
    documents = read_explored(str(tmp_path), "text", None, 10)
    assert documents.titles == ["The harbour", "Sails", "Ropes", "Trees", "Oaks"]
    assert documents.labels is None
    documents = read_explored(str(tmp_path), "text", "topic", 10)
    assert (documents.titles, documents.labels) == (["Ropes", "Trees", "Oaks"], ["sea", "land", "land"])


def test_an_index_gives_titles_ids_and_the_vectors_that_it_has(scattered, tmp_path):
    texts = {"a.txt": "Ships. A ship.", "b.txt": "A tree.", "c.txt": f"{LONG_TITLE}. An anchor."}
    titles = {"a.txt": "Ships", "b.txt": "", "c.txt": LONG_TITLE}
    encoder = Encoder(str(scattered))
    documents = [Document(name, text, titles[name]) for name, text in texts.items()]
    build(tmp_path / "index", documents, encoder, 100)
    shown, _ = documents_of_index(tmp_path / "index", 10)
    assert shown.ids == ["a.txt", "b.txt", "c.txt"]
    assert shown.titles == ["Ships", "b.txt", LONG_TITLE]
    np.testing.assert_allclose(shown.vectors, unit(encoder.embed(list(texts.values()))), atol=1e-2)
    assert len(documents_of_index(tmp_path / "index", 2)[0].texts) == 2
