"""Names, cells, notes and layouts of tables."""

from dataclasses import replace

import pytest

from docsplit.evaluation.results.comparison import rows
from docsplit.evaluation.results.tables import encoder_names, result_tables, short_names, table_notes
from docsplit.evaluation.results.task import CLASSIFICATION, LINKS
from tests.evaluation.results.examples import cells, make_group, make_result


def test_short_names_are_short_and_never_equal():
    assert short_names(["outputs/docsplit", "tfidf"]) == {"outputs/docsplit": "outputs/docsplit", "tfidf": "tfidf"}
    paths = ["/long/way/to/simcse/checkpoint-500", "/long/way/to/docsplit/checkpoint-500", "docsplit/checkpoint-500"]
    paths += ["checkpoint-500", "/long/way/to/docsplit/checkpoint-500/", "sentence-transformers/all-MiniLM-L6-v2"]
    short = short_names(paths)
    assert len(set(short.values())) == len(paths)
    assert short[paths[0]] == "simcse/checkpoint-500"
    assert short[paths[5]] == "all-MiniLM-L6-v2"
    assert short["checkpoint-500"] == "checkpoint-500"


def test_tables_survive_hostile_names_and_bold_the_best():
    results = [
        make_result("good|model\nwith **news**", 3.0),
        make_result("poor", 0.1),
        make_result("poor", 0.1, head="knn", num_runs=1),
    ]
    table = rows(results)
    title, _, header, _, good, poor = result_tables(table, CLASSIFICATION).split("\n")
    assert title == "## Full training set"
    assert cells(header)[1:] == ["linear: Accuracy", "linear: Macro-F1", "knn: Accuracy", "knn: Macro-F1"]
    percent = f"{100 * table[0].measures['accuracy'].mean:.1f} ± {100 * table[0].measures['accuracy'].std:.1f}"
    assert cells(good) == [
        r"good/model with \*\*news\*\*",
        f"**{percent}**",
        f"**{100 * table[0].measures['macro_f1'].mean:.1f} ± {100 * table[0].measures['macro_f1'].std:.1f}**",
        "",
        "",
    ]
    assert not cells(poor)[1].startswith("**")
    assert cells(poor)[3] == f"**{100 * table[2].measures['accuracy'].mean:.1f}**"  # one run: no deviation


def test_tables_say_how_many_test_items_and_pretraining_runs_there_are():
    group, (single, _) = make_group("A=o/a1,o/a2", ["o/a1", "o/a2"], 1.0)
    table = rows([group, single])
    notes = " ".join(table_notes(table, CLASSIFICATION))
    for said in ("Test: 90 documents. Fewer than 100", "where `seeds` is 1", "± the standard deviation over them"):
        assert said in notes
    header, _, first, second = result_tables(table, CLASSIFICATION).split("\n")[2:6]
    assert cells(header)[:2] == ["encoder", "seeds"]
    assert (cells(first)[:2], cells(second)[:2]) == (["A", "2"], ["o/a1", "1"])
    links = make_result("a", 1.0, "links")
    links = replace(links, test_documents=61)
    (row,) = rows([links])
    assert (row.test_items, row.test_documents) == (90, 61)
    assert "Test: 90 pairs of 61 documents." in table_notes([row], LINKS)[0]
    assert cells(result_tables([row], LINKS).split("\n")[-1])[-2] == "1"
    old = replace(row, test_items=None, test_documents=None, pretraining_seeds=None)
    assert table_notes([old], LINKS) == []
    baseline = replace(links, is_baseline=True, pretraining_seeds=None)
    assert "single" not in " ".join(table_notes(rows([baseline]), LINKS))


@pytest.mark.parametrize(("lengths", "read", "said"), [
    ((128, 1024), "truncate", True), ((128, 128), "truncate", False), ((128, None), "truncate", False),
    ((128, 1024), "chunk_mean", False), ((128, 1024), "passages", False),
])  # fmt: skip
def test_tables_say_where_encoders_read_unlike_lengths(lengths, read, said):
    results = [make_result(f"encoder{length}", 1.0, max_seq_length=length, long_documents=read) for length in lengths]
    notes = " ".join(table_notes(rows(results), CLASSIFICATION))
    assert ("the first 128 or 1,024 tokens" in notes) is said


def test_a_grid_has_a_line_for_raw_and_one_for_standardised_features():
    results = [
        make_result(name, 1.0, head=head, features=kind)
        for name in "ab"
        for kind in ("raw", "standardized")
        for head in ("mlp", "linear")
    ]
    results.append(replace(make_result("tfidf", 1.0), pretraining_seeds=None))
    results[0].preset = results[2].preset = "bregman"
    header, _, *lines = result_tables(rows(results), CLASSIFICATION).split("\n")[2:]
    assert cells(header)[:3] == ["encoder", "features", "mlp (bregman): Accuracy"]
    kinds = ("raw", "standardized")
    assert [tuple(cells(line)[:2]) for line in lines] == [(n, k) for n in "ab" for k in kinds] + [("tfidf", "raw")]
    assert cells(lines[-1])[2:4] == ["", ""]


def test_an_encoder_with_a_pooling_of_its_own_is_named_by_its_last_component():
    typed = ["tfidf", "models/long/a@mean", "B=models/b@cls", "models/c,models/d@max", "e@prompt=x, y/z=1"]
    members = [[], ["models/long/a"], ["models/b"], ["models/c", "models/d"], ["e"]]
    shown = ["tfidf", "a@mean", "B", "c and 1 more", "e@prompt=x, y/z=1"]
    assert list(encoder_names(dict(zip(typed, members))).values()) == shown
    again = dict(zip(shown, members))  # as a card has them
    assert list(encoder_names(again).values()) == shown
