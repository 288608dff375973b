"""Words of documents: seconds and memory of fitting them, and documents a second of the static encoder that results.

    python -m benchmarks.speed.words ENCODER
    python -m benchmarks.speed.words ENCODER --sizes 2000 --texts 100 --output outputs/words.json

Fitting gets random vectors of so many documents, so that embedding is no part of it; tokenising is. Documents are
synthetic: words that are one token of the encoder's each, drawn by Zipf's law, some 150 different ones a document.
Where neighbours are left out, the difference is what they cost. Using is embedding texts from strings to vectors with
sentence-transformers, all tokens in the static encoder and the encoder's own length in the encoder; short texts are
the first words of the same documents. model2vec loads the same static folder, where it is installed.
"""

import argparse
import importlib.util
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.results import write_report
from docsplit.runtime.files import versions
from docsplit.runtime.launching import hardware

WORDS, SHORT_WORDS = 250, 30  # of a document
PLACES = {"seconds": 1, "peak_mb": 0, "pieces": 0}  # decimals of what is measured of fitting
FITS = {"as adapt.py does": 20, "without neighbours": 0}
START, STATIC, MODEL2VEC = "encoder", "static encoder", "static encoder, by model2vec"
TF_IDF, LSA = "TF-IDF, by scikit-learn", "latent semantic analysis of that"


def make_texts(tokenizer: Any, documents: int) -> list[str]:
    """Draw documents of words that are one token each, by Zipf's law."""
    vocabulary = sorted(token for token in tokenizer.get_vocab() if token.isalpha() and token.isascii())
    rng = np.random.default_rng(0)
    shares = np.cumsum(1 / np.arange(1, len(vocabulary) + 1))
    order = rng.permutation(len(vocabulary))
    rows = np.searchsorted(shares / shares[-1], rng.random((documents, WORDS)))
    return [" ".join(vocabulary[order[row]] for row in its_rows) for its_rows in rows]


def measure_fit(name: str, documents: int, neighbours: int) -> tuple[float, float, int]:
    """Fit words in this process; return seconds, peak memory beyond the input in MB, and the tokens with a vector."""
    from benchmarks.speed.meters import Memory, seconds_of
    from docsplit.embedding.lexical_ridge import RidgeSettings, fit
    from docsplit.embedding.loading import load_encoder

    model = load_encoder(name, device="cpu")
    texts = make_texts(model.tokenizer, documents)
    width = model.get_embedding_dimension() or 0
    vectors = np.random.default_rng(0).normal(size=(documents, width)).astype(np.float32)
    memory, fitted = Memory("cpu"), []
    memory.start()
    seconds = seconds_of(lambda: fitted.append(fit(model, texts, vectors, RidgeSettings(None, neighbours))))
    memory.stop()
    return seconds, memory.peak / 2**20, fitted[0].facts.pieces


def contenders(name: str, texts: list[str], folder: Path) -> dict[str, Callable[[list[str]], Any]]:
    """Return what embeds texts: the encoder, a static one of words fitted to random vectors, and words without it."""
    from sentence_transformers import SentenceTransformer
    from sklearn.decomposition import TruncatedSVD
    from sklearn.pipeline import make_pipeline

    from docsplit.data.words import tfidf_counter
    from docsplit.embedding.lexical_ridge import RidgeSettings, fit, save_static
    from docsplit.embedding.loading import load_encoder
    from docsplit.embedding.neighbours import WORD_DIMENSIONS

    encoder = load_encoder(name, device="cpu")
    vectors = np.random.default_rng(0).normal(size=(len(texts), encoder.get_embedding_dimension() or 0))
    save_static(fit(encoder, texts, vectors, RidgeSettings(1.0, 0, sublinear=False)).words, folder)
    static = SentenceTransformer(str(folder), device="cpu")
    ways: dict[str, Callable[[list[str]], Any]] = {START: encoder.encode, STATIC: static.encode}
    counter = tfidf_counter(dtype=np.float32)
    ways[TF_IDF] = counter.fit(texts).transform
    dimensions = min(WORD_DIMENSIONS, len(texts) - 1)
    ways[LSA] = make_pipeline(counter, TruncatedSVD(dimensions, random_state=0)).fit(texts).transform
    if importlib.util.find_spec("model2vec") is not None:
        from model2vec import StaticModel

        model = StaticModel.from_pretrained(str(folder))
        ways[MODEL2VEC] = lambda texts: model.encode(texts, max_length=None)
    return ways


def measure_use(name: str, documents: int, rounds: int) -> dict[str, dict[str, float]]:
    """Embed whole and short texts in alternating rounds; return documents a second and the ratio to the encoder."""
    from benchmarks.speed.meters import seconds_of
    from docsplit.embedding.loading import load_encoder

    texts = make_texts(load_encoder(name, device="cpu").tokenizer, documents)
    kinds = {"documents": texts, "short": [" ".join(text.split()[:SHORT_WORDS]) for text in texts]}
    with tempfile.TemporaryDirectory(prefix="docsplit-words-") as folder:
        ways = contenders(name, texts, Path(folder))
        rates: dict[str, dict[str, list[float]]] = {way: {kind: [] for kind in kinds} for way in ways}
        for way in ways.values():
            way(texts[:10])
        for _ in range(rounds):
            for way, embed in ways.items():
                for kind, its_texts in kinds.items():
                    seconds = seconds_of(lambda embed=embed, texts=its_texts: embed(texts))
                    rates[way][kind].append(documents / seconds)
    rows: dict[str, dict[str, float]] = {}
    for way, by_kind in rates.items():
        rows[way] = {kind: statistics.median(values) for kind, values in by_kind.items()}
        rows[way] |= {
            f"{kind}_ratio": statistics.median(mine / its for mine, its in zip(values, rates[START][kind]))
            for kind, values in by_kind.items()
        }
    return rows


def tables(fits: list[dict[str, Any]], uses: dict[str, dict[str, float]]) -> str:
    """Return a table of fitting and one of using."""
    from docsplit.evaluation.results.markdown import markdown_table

    fitting = [
        [f"{row['documents']:,}, {row['way']}", *(f"{row[key]:,.{places}f}" for key, places in PLACES.items())]
        for row in fits
    ]
    using = [
        [way, *(f"{row[key]:,.0f}" for key in ("documents", "documents_ratio", "short", "short_ratio"))]
        for way, row in uses.items()
    ]
    header = ["embedding", "documents / s", "of the encoder's", "short texts / s", "of the encoder's"]
    return "\n\n".join(
        [markdown_table(["fitting", "seconds", "peak memory, MB", "tokens"], fitting), markdown_table(header, using)]
    )


def main() -> None:
    """Measure fitting in a process for each size, and using; print the tables, write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", help="of the Hub or here, with a fast tokenizer")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 20_000, 100_000], help="documents to fit on")
    parser.add_argument("--texts", type=int, default=1000, help="texts to embed (default: 1,000)")
    parser.add_argument("--rounds", type=int, default=3, help="of embedding; fitting is measured once a size")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/words.json"), help="JSON file, with tables beside it"
    )
    options = parser.parse_args()

    context, fits = multiprocessing.get_context("spawn"), []
    for documents in options.sizes:
        for way, neighbours in FITS.items():
            with ProcessPoolExecutor(1, mp_context=context) as process:
                measured = process.submit(measure_fit, options.encoder, documents, neighbours).result()
            fits.append({"documents": documents, "way": way} | dict(zip(PLACES, measured)))
            print(fits[-1], flush=True)
    uses = measure_use(options.encoder, options.texts, options.rounds)
    contents: dict[str, Any] = {"encoder": options.encoder, "texts": options.texts, "rounds": options.rounds}
    contents |= {"fits": fits, "uses": uses, "hardware": hardware("cpu"), "versions": versions()}
    text = f"Words of {Path(options.encoder).name}.\n\n{tables(fits, uses)}\n\n{contents['hardware']}.\n"
    write_report(options.output, contents, text)
    print(text)


if __name__ == "__main__":
    main()
