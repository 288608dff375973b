"""The page's search is bm25s: the same words, scores and order, and it marks the words."""

import json
import shutil
import subprocess

import bm25s
import numpy as np
import pytest
from bm25s.tokenization import STOPWORDS_EN

from docsplit.data.passages import HAN_AND_KANA
from docsplit.data.words import tokenize
from docsplit.explorer.page import FOLDER
from tests.conftest import make_corpus

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")
TEXTS = [row["text"] for row in make_corpus(40)] + [
    "東京タワーへ行く the Ähre Straße İstanbul x_1 naïve 2024",
    "東京 is not the ship, the ship, THE SHIP.",
    "",
]


def run_script(expression, **values):
    """Evaluate an expression in JavaScript, with these values and the code of the page."""
    given = values | {"lone": HAN_AND_KANA, "stop": list(STOPWORDS_EN)}
    names = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in given.items())
    code = f'"use strict";\n{(FOLDER / "bm25.js").read_text()}\n{names}console.log(JSON.stringify({expression}));'
    return json.loads(subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, check=True).stdout)


def test_words_are_cut_as_elsewhere():
    assert run_script("texts.map(cutter(lone, stop))", texts=TEXTS) == tokenize(TEXTS, return_ids=False)


def test_scores_are_those_of_bm25s():
    queries = ["ship tide", "the bread of the oven", "東京", "ladder ship apple salt", "nothing_here"]
    code = "queries.map((query) => rank(indexTexts(texts, cutter(lone, stop)), cutter(lone, stop)(query)))"
    ranked = run_script(code, texts=TEXTS, queries=queries)
    retriever = bm25s.BM25(k1=1.5, b=0.75)
    retriever.index(tokenize(TEXTS), show_progress=False)
    for query, found in zip(queries, ranked):
        words = [word for word in tokenize([query], return_ids=False)[0] if word in retriever.vocab_dict]
        expected = retriever.get_scores(words) if words else np.zeros(len(TEXTS))
        scores = np.zeros(len(TEXTS))
        scores[found["rows"]] = found["scores"]
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
        assert len(found["rows"]) == np.count_nonzero(expected)
        assert found["scores"] == sorted(found["scores"], reverse=True)
    assert len(ranked[0]["rows"]) > 5


def test_the_last_word_may_be_half_typed():
    code = "[...rank(indexTexts(texts, cutter(lone, stop)), words).words]"
    texts = ["sailor sails", "sail", "bread"]
    assert run_script(code, texts=texts, words=["sai"]) == ["sailor", "sails", "sail"]
    assert run_script(code, texts=texts, words=["sail"]) == ["sail"]  # a word that there is means itself
    assert run_script(code, texts=texts, words=["sai", "bread"]) == ["sai", "bread"]


def test_words_are_marked_and_no_letter_is_lost():
    text = "The ship, SHIP and shipping <b>of</b> 東京タワー"
    pieces = run_script("piecesOf(text, wordPattern(lone), new Set(['ship', '東']))", text=text)
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, is_hit in pieces if is_hit] == ["ship", "SHIP", "東"]
