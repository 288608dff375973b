"""What analysis.json says: dataclasses become JSON once, with the keys and the order that readers know."""

import numpy as np

from docsplit.embedding.attention import GraphReadings
from docsplit.evaluation.analysis.contents import (
    GeometryContents,
    GraphAttentionContents,
    RedundancyContents,
    SimilarityContents,
    as_json,
)
from docsplit.evaluation.analysis.estimates import EncoderDifference, Estimate, EstimateRow
from docsplit.evaluation.analysis.redundancy import RedundancyRow


def test_a_row_is_flat_and_in_order():
    numbers = {"auc": Estimate(0.5, 0.4, 0.6, 0.1, [0.4, 0.6]), "inner": Estimate(0.3, 0.2, 0.4)}
    row = EstimateRow("g", ["a", "b"], numbers, {"max_tokens": 64})
    assert list(as_json(row).items()) == [
        ("encoder", "g"), ("members", ["a", "b"]), ("max_tokens", 64),
        ("auc_mean", 0.5), ("auc_low", 0.4), ("auc_high", 0.6), ("auc_std", 0.1), ("auc_of_seeds", [0.4, 0.6]),
        ("inner_mean", 0.3), ("inner_low", 0.2), ("inner_high", 0.4),
    ]  # fmt: skip


def test_contents_hold_rows_and_differences():
    difference = EncoderDifference("a", "b", "auc", 0.1, -0.1, 0.3, 0.2, None, None, None)
    contents = as_json(SimilarityContents([], [difference], 30, {"short": 2}, 100, 0, "rules"))
    assert list(contents) == [
        "rows", "differences", "documents", "counts", "inter_pairs", "same_class_pairs", "splitter",
    ]  # fmt: skip
    assert list(contents["differences"][0].items()) == [
        ("a", "a"), ("b", "b"), ("measure", "auc"), ("difference", 0.1), ("low", -0.1), ("high", 0.3),
        ("p_value", 0.2), ("ratio", None), ("ratio_low", None), ("ratio_high", None),
    ]  # fmt: skip
    geometry = GeometryContents([EstimateRow("a", [], {"width": Estimate(8.0)})], 9, 4, 5)
    assert as_json({"geometry": geometry}) == {
        "geometry": {
            "rows": [{"encoder": "a", "members": [], "width_mean": 8.0}], "documents": 9, "halved": 4, "neighbours": 5,
        }
    }  # fmt: skip


def test_a_class_of_lengths_without_documents_has_no_numbers():
    rows = [
        RedundancyRow("with_names", "0-50", 0, 3, {}),
        RedundancyRow("with_names", "All", 2, 3, {"r": Estimate(1.5, 1, 2)}),
    ]
    empty, whole = as_json(RedundancyContents(rows, [], 5, "", "a tagger"))["rows"]
    assert empty == {"variant": "with_names", "length": "0-50", "n": 0, "left_out": 3}
    assert whole == empty | {"length": "All", "n": 2, "r_mean": 1.5, "r_low": 1, "r_high": 2}


def test_arrays_stay_for_the_writer():
    weights = {"full": np.eye(2)}
    contents = as_json(GraphAttentionContents(7, {"a": GraphReadings(["a passage"], "full", weights)}))
    assert contents["document"] == 7
    assert list(contents["encoders"]["a"]) == ["passages", "kind", "weights"]
    assert contents["encoders"]["a"]["weights"]["full"] is weights["full"]
