"""Which table of token embeddings is the better start: latent semantic analysis or the closed form, long or equal?

    python -m benchmarks.studies.lexical.tables --data_dir DIR

A document is the mean of its first 510 tokens' vectors, of length one after centring: as an encoder from nothing gives
it, for its layers add little. Layer norms make tokens equally long; an epsilon of 1 leaves them. Posts and docstrings,
two draws of 1,400 training documents and 600 validation documents each, which are training documents too
(`benchmarks.studies.closed_form.choices`); 5 labels a class, three draws of them, logistic regression.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
from datasets import Dataset
from sklearn.decomposition import TruncatedSVD

from benchmarks.studies.closed_form.choices import SETS, right, validation_of
from docsplit.data.sets.labelled import SHOTS
from docsplit.data.tokenization import train_wordpiece
from docsplit.embedding import closed_form
from docsplit.embedding.lexical_ridge import tfidf
from docsplit.embedding.lexical_start import _counts
from docsplit.runtime.files import cache_directory, write_text
from docsplit.runtime.vectors import unit

DRAWS, LABEL_DRAWS, WIDTHS = (1, 2), 3, (64, 128)
OUTPUT = Path("benchmarks/results/lexical_tables.json")


def main() -> None:
    """Measure all, and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with the folder 20newsgroups")
    options = parser.parse_args()
    rows = []
    for name, draw in product(SETS, DRAWS):
        split = validation_of(name, options.data_dir, draw)
        tokenizer = train_wordpiece(Dataset.from_dict({"text": split.train_texts}), "text", 8192, cache_directory())
        ids = [
            tokenizer(texts, add_special_tokens=False, truncation=True, max_length=510)["input_ids"]
            for texts in (split.train_texts, split.test_texts)
        ]
        counts = [_counts(Dataset.from_dict({"input_ids": of_part}), len(tokenizer), []) for of_part in ids]
        features, tokens, weigher = tfidf(counts[0])
        for width in WIDTHS:
            svd, fitted = TruncatedSVD(width, random_state=0).fit(features), closed_form.fit(counts[0], width=width)
            tables = {
                "LSA": (tokens, weigher.idf_[:, None] * svd.components_.T * svd.singular_values_),
                "closed form": (fitted.tokens, fitted.table),
            }
            row = {"set": name, "draw": draw, "width": width}
            for (table, (known, vectors)), lengths in product(tables.items(), ("equal", "own")):
                used = unit(vectors - vectors.mean(axis=1, keepdims=True)) if lengths == "equal" else vectors
                shares = [of_part[:, known] for of_part in counts]
                means = [part.multiply(1 / np.maximum(part.sum(axis=1), 1)).tocsr() @ used for part in shares]
                centred = [unit(np.asarray(mean - means[0].mean(axis=0))) for mean in means]
                found = right((centred[0], centred[1]), split, split.draws(SHOTS, LABEL_DRAWS)).mean()
                row[f"{table}, {lengths} lengths"] = round(float(found), 3)
            rows.append(row)
    about = str(__doc__).splitlines()[0]
    write_text(OUTPUT, json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
