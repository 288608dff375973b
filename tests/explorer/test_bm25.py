"""The page's search is that of `docsplit.data.bm25`: the same stems, scores and order, and it marks the words."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from docsplit.data.bm25 import BM25
from docsplit.data.words import Stems
from docsplit.explorer.page import PAGE_FOLDER, words_of_page
from tests.conftest import make_corpus
from tests.data.test_words import OF_LANGUAGES

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")
TEXTS = [row["text"] for row in make_corpus(40)] + [
    "東京タワーへ行く the Ähre Straße İstanbul x_1 naïve 2024",
    "東京 is not the ship, the ships, THE SHIP.",
    "get_user_by_id parses parseHTMLResponse retries",
    "",
]


def run_script(expression, language="english", **values):
    """Evaluate an expression in JavaScript, with these values and the code of the page."""
    given = values | {"page": words_of_page(values.get("texts", [""]), language)}
    names = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in given.items())
    names += "const cutter = cutterOf(page), cut = cutter.cut;\n"
    code = f'"use strict";\n{(PAGE_FOLDER / "bm25.js").read_text()}\n{names}console.log(JSON.stringify({expression}));'
    return json.loads(subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("language", ["english", "turkish", "hindi", "none"])
def test_words_are_cut_as_elsewhere(language):
    texts = [*TEXTS, *(text for _, text, _ in OF_LANGUAGES)]
    assert run_script("texts.map(cut)", language, texts=texts) == [*map(Stems(language).of, texts)]


def test_scores_are_those_of_the_index():
    queries = ["ship tide", "the bread of the oven", "東京", "ladder ship apple salt", "nothing_here", "html response"]
    ranked = run_script(
        "queries.map((query) => rank(indexTexts(texts, cut), cut(query)))", texts=TEXTS, queries=queries
    )
    index, rows = BM25(TEXTS), np.arange(len(TEXTS))[None]
    for query, found in zip(queries, ranked):
        expected = index.scores([query], rows)[0]
        scores = np.zeros(len(TEXTS))
        scores[found["rows"]] = found["scores"]
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
        assert len(found["rows"]) == np.count_nonzero(expected)
        assert found["scores"] == sorted(found["scores"], reverse=True)
    assert len(ranked[0]["rows"]) > 5
    assert [len(found["rows"]) for found in ranked[-2:]] == [0, 1]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sai", ["sailor", "sail"]),  # half typed
        ("sail", ["sail"]),  # a word that there is means itself
        ("sai bread", ["sai", "bread"]),
        ("sailings", ["sail"]),  # a form that no text has: its stem is not known
        ("sailings bread", ["sail", "bread"]),
        ("sailmakers", ["sailmakers"]),
    ],
)
def test_a_word_that_no_text_has_is_a_beginning_or_another_form(query, words):
    texts = ["sailor sails", "sail", "bread"]
    found = run_script("[...rank(indexTexts(texts, cut), cut(query)).words]", texts=texts, query=query)
    assert found == words


def test_words_are_marked_by_their_stems_and_no_letter_is_lost():
    text = "The ships, SHIP and shipyard <b>of</b> s\u00adhip 東京タワー"
    code = "piecesOf(texts[0], cutter, new Set(['ship', '東']))"
    pieces = run_script(code, texts=[text])
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, is_hit in pieces if is_hit] == ["ships", "SHIP", "s\u00adhip", "東"]
