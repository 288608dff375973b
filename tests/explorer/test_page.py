"""What the page says of an encoder and its results, and that one file holds all of it."""

import base64
import gzip
import json
import re

import numpy as np

from docsplit.embedding.lexical_ridge import RidgeSettings, fit, save_static
from docsplit.explorer.page import PAGE_FOLDER, html_of, matches_of, summary_of
from docsplit.explorer.sentences import split_texts
from docsplit.modeling.loading import load_encoder, with_words
from tests.conftest import make_corpus


def test_the_page_says_how_much_of_a_document_is_read(encoder, tmp_path):
    plain, texts = load_encoder(str(encoder), device="cpu"), [row["text"] for row in make_corpus(30)]
    vectors = plain.encode(texts)
    words, plain_counts = (fit(plain, texts, vectors, RidgeSettings(1.0, 0, flag)).words for flag in (True, False))
    save_static(plain_counts, tmp_path)
    about = "30 documents, embeddings of 32 numbers, "
    assert summary_of(plain, vectors) == f"{about}up to 64 tokens read of each"
    read = "up to 64 tokens read of each, and the words of all of it"
    assert summary_of(with_words(plain, words), vectors) == about + read
    assert summary_of(load_encoder(str(tmp_path)), vectors) == f"{about}whole texts read"


def payload_of(page):
    packed = re.search(r'text/plain">([A-Za-z0-9+/=]+)<', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_one_file_holds_style_code_and_data_and_asks_for_nothing_else():
    page = html_of({"name": "</script>", "titles": ["/* page.js */"]})
    for name in ("page.css", "bm25.js", "page.js"):
        assert (PAGE_FOLDER / name).read_text() in page
    assert payload_of(page)["name"] == "</script>"
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//|@import|url\(", page)
    assert "default-src 'none'" in page


def test_matches_are_among_the_sentences_that_say_something(encoder, caplog):
    model = load_encoder(str(encoder), device="cpu")
    notice = "This notice about nothing special stands at the beginning."
    texts = split_texts([f"{notice} {row['text']}" for row in make_corpus(12)])
    neighbours = np.array([[(row + 1) % 12, (row + 2) % 12] for row in range(12)])
    with caplog.at_level("INFO"):
        matches = matches_of(texts, neighbours, model)
    pairs = [pair for several in matches["matches"] for pair in several if pair]
    assert pairs
    assert all(0 not in pair for pair in pairs)  # never the notice
    assert 0 <= matches["opening"] < 12
    total = sum(len(text.sentences) for text in texts)
    assert re.search(rf"\d+ of {total} sentences are matched", caplog.text)
