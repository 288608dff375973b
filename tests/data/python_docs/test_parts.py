"""The division of python_docs: what belongs together is in one part, and nothing but the documents decides."""

from collections import Counter

import numpy as np
import pytest

from docsplit.data.copies import near_duplicates
from docsplit.data.python_docs.parts import PART_NAMES, PART_SHARES, divide_packages, split_references


def document(number, label, links=(), like=None):
    """Forty words of its own, or those of another and one more; links stand in a See Also list."""
    rng = np.random.default_rng(number if like is None else like)
    words = [f"word{word}" for word in rng.integers(10_000, size=40)] + ([] if like is None else ["more"])
    sections = [{"heading": "", "text": " ".join(words)}]
    if links:
        sections.append({"heading": "See Also", "text": "\n".join(f"name{target} : It." for target in links)})
    ids = [f"kit.name{target}" for target in links]
    return {"id": f"kit.name{number}", "text": " ".join(words), "sections": sections, "label": label, "links": ids}


@pytest.fixture(scope="module")
def rows():
    """400 documents of three sub-packages: families of four that list each other, and pairs of near-duplicates."""
    documents = []
    for number in range(200):
        first = number - number % 4
        links = [other for other in range(first, first + 4) if other != number]
        documents.append(document(number, f"kit.{number // 4 % 2}", links))
    documents += [document(number, "kit.2", like=number - number % 2) for number in range(200, 300)]
    return documents + [document(number, f"kit.{number % 3}") for number in range(300, 400)]


def test_families_and_near_duplicates_stay_together_and_labels_keep_their_shares(rows):
    parts = divide_packages(rows)
    families = [{parts[number] for number in range(first, first + 4)} for first in range(0, 200, 4)]
    families += [{parts[number] for number in (first, first + 1)} for first in range(200, 300, 2)]
    assert all(len(family) == 1 for family in families)
    assert set(parts) == set(PART_NAMES)
    for label in ("kit.0", "kit.1", "kit.2"):
        counts = Counter(part for part, row in zip(parts, rows) if row["label"] == label)
        for name, share in zip(PART_NAMES, PART_SHARES):
            assert counts[name] == pytest.approx(share * counts.total(), abs=4)


def test_a_sub_package_of_few_large_families_is_in_each_part():
    rows = [document(number, "kit.0", like=number // 30 * 30) for number in range(90)]  # three that cannot be cut
    rows += [document(number, "kit.1") for number in range(90, 290)]
    assert Counter(divide_packages(rows)) == {"train": 30 + 150, "validation": 30 + 20, "test": 30 + 30}


def test_the_documents_of_installed_packages_are_divided_alike_twice(installed_documents):
    rows = installed_documents
    parts = np.array(divide_packages(rows))
    assert divide_packages(rows) == parts.tolist()
    texts = np.array([row["text"] for row in rows], dtype=object)
    inside = texts[parts == "test"].tolist()
    assert len(inside) == pytest.approx(0.15 * len(rows), abs=0.02 * len(rows))
    assert not near_duplicates(inside, texts[parts != "test"].tolist()).any()
    _, links, _ = split_references(rows)
    assert (parts[links[:, 0]] != parts[links[:, 1]]).mean() < 0.1
    shuffled = np.random.default_rng(0).permutation(parts)  # or the comparison shows nothing
    assert (shuffled[links[:, 0]] != shuffled[links[:, 1]]).mean() > 0.3
