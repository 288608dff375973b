"""Redundancy against counting, its null against its definition, and that the null tells length from repetition."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from docsplit.evaluation.analysis.redundancy import ALL, LENGTH_CLASSES, content_words, redundancies, redundancy_rows
from docsplit.evaluation.results.bootstrap import NUM_SAMPLES

GENERATOR = np.random.default_rng(0)


def corpus(num_documents, vocabulary):
    """Documents of nouns, verbs, names and others, the same words for all."""
    tagged = []
    for _ in range(num_documents):
        length = int(GENERATOR.integers(5, 120))
        parts = GENERATOR.choice(["NOUN", "VERB", "PROPN", "ADP"], length, p=[0.4, 0.2, 0.1, 0.3])
        tagged.append(([f"w{number}" for number in GENERATOR.integers(vocabulary, size=length)], list(parts)))
    return tagged, [4 * len(lemmas) for lemmas, _ in tagged]


@pytest.fixture(scope="module")
def shuffled():
    return corpus(150, 60)


def test_r_against_counting(shuffled):
    tagged, words = shuffled
    observed, _ = redundancies(content_words(tagged, words))
    for (lemmas, parts), value in zip(tagged, observed, strict=True):
        own = [(lemma, part) for lemma, part in zip(lemmas, parts) if part in ("NOUN", "VERB")]
        assert value == pytest.approx(len(own) / len(set(own))) if own else np.isnan(value)


def test_the_null_draws_as_many_of_each_part_from_other_documents():
    """Where the others have one noun and one verb a hundred times each, D of the null is 2, whatever the own words."""
    own = ([f"own{number}" for number in range(30)], ["NOUN"] * 10 + ["VERB"] * 20)
    others = (["ship"] * 100 + ["sail"] * 100, ["NOUN"] * 100 + ["VERB"] * 100)
    observed, null = redundancies(content_words([own, others], [30, 200]))
    assert (observed[0], null[0]) == (1, 30 / 2)
    # 200 words from 30 others: 10 nouns and 20 verbs, each with replacement.
    assert null[1] >= 200 / 30
    assert observed[1] == 100


def test_the_null_grows_with_length_as_r_does_where_words_are_shuffled(shuffled):
    tagged, words = shuffled
    rows, growth = redundancy_rows(content_words(tagged, words))
    all_lengths = rows[-1]
    assert all_lengths["r_to_null_low"] < 1 < all_lengths["r_to_null_high"]
    assert growth["r"] > 0.8  # grows with length ...
    assert growth["r_null"] > 0.8
    assert growth["r_to_null_low"] < 0 < growth["r_to_null_high"]  # ... and no more than in shuffled text


def test_correlations_with_length_have_the_intervals_of_a_loop(shuffled):
    tagged, words = shuffled
    content = content_words(tagged, words)
    _, growth = redundancy_rows(content)
    r, r_null = redundancies(content)
    known = np.isfinite(r)
    lengths, values = content.words[known], {"r": r[known], "r_null": r_null[known], "r_to_null": (r / r_null)[known]}
    generator, drawn = np.random.default_rng(0), {name: [] for name in values}
    for _ in range(NUM_SAMPLES):
        items = generator.integers(len(lengths), size=len(lengths))
        correlations = spearmanr(np.stack([lengths, *values.values()])[:, items], axis=1).statistic[0, 1:]
        for name, value in zip(values, correlations):
            drawn[name].append(value)
    for name, value in values.items():
        assert growth[name] == pytest.approx(spearmanr(lengths, value).statistic)
        ends = (growth[f"{name}_low"], growth[f"{name}_high"])
        assert ends == pytest.approx(tuple(np.quantile(drawn[name], [0.025, 0.975])))


def test_length_classes_and_counts(shuffled):
    tagged, words = shuffled
    tagged, words = [*tagged, (["of"], ["ADP"])], [*words, 1]
    rows, _ = redundancy_rows(content_words(tagged, words))
    own = {row["length"]: row for row in rows}
    assert own[ALL]["n"] == sum(own[name]["n"] for name in LENGTH_CLASSES)
    lengths = [next(name for name, most in LENGTH_CLASSES.items() if count <= most) for count in words]
    assert [own[name]["n"] + own[name]["left_out"] for name in LENGTH_CLASSES] == [
        lengths.count(name) for name in LENGTH_CLASSES
    ]
    assert own["0-50"]["left_out"] >= 1
    assert own[ALL]["n"] + own[ALL]["left_out"] == 151
    assert own[ALL]["r_low"] < own[ALL]["r_mean"] < own[ALL]["r_high"]
