"""What a result refuses, and several pretraining seeds as one result."""

from dataclasses import replace

import numpy as np
import pytest

from docsplit.evaluation.heads.frozen import HeadOutput
from docsplit.evaluation.results.comparison import comparisons, rows
from docsplit.evaluation.results.result import System, classification_result, link_result, merge_members, merge_seeds
from docsplit.evaluation.results.tables import names_of, result_tables, table_notes
from tests.evaluation.results.examples import (
    LINKED,
    TASKS,
    cells,
    json_rows,
    make_group,
    make_ranking,
    make_result,
    make_scores,
    make_split,
)


def test_scores_that_cannot_be_measured_name_encoder_and_head():
    scores = make_scores(1.0)
    scores[0, 3, 1] = np.nan
    with pytest.raises(ValueError, match=r"'a' with head 'linear' .*1 of 270 predictions"):
        classification_result(System(encoder="a", head="linear"), HeadOutput(scores, 1.5, 100), make_split("single"))
    output = HeadOutput(make_scores(1.0)[:, :-1], 1.5, 100)
    with pytest.raises(ValueError, match=r"'a' with head 'linear'.*another split"):
        classification_result(System(encoder="a", head="linear"), output, make_split("single"))
    with pytest.raises(ValueError, match="2 classes"):
        classification_result(System(encoder="a", head="linear", shots=5), output, make_split("single", ["b", "c"]))
    with pytest.raises(ValueError, match=r"'a' with head 'cosine'.*90 test items"):
        link_result(System(encoder="a", head="cosine"), output, LINKED)


def test_results_that_do_not_fit_their_task_or_each_other_are_refused():
    ranking = make_ranking("a", 1.0)
    for change, message in (
        ({"measured": {"ndcg_10": ranking.measured["ndcg_10"]}}, "its task 'document-ranking' expects"),
        ({"measured": ranking.measured | {"ndcg_10": np.array([0.5])}}, "one value a run of ndcg_10"),
        ({"measured": ranking.measured | {"median_rank": np.array([1, 2])}}, r"shape \[\(2,\)\], expected"),
        ({"details": {}}, "details"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(ranking, **change)
    with pytest.raises(ValueError, match="several tasks"):
        rows([ranking, make_result("a", 1.0)])
    with pytest.raises(ValueError, match="60 and 61"):
        comparisons([ranking, make_ranking("b", 1.0, num_queries=61)])


@pytest.mark.parametrize("kind", TASKS)
def test_a_group_of_seeds_is_the_mean_of_its_members_with_the_spread_between_and_within(kind):
    members = ["o/a1", "o/a2", "o/a3"]
    group, results = make_group("A=o/a1,o/a2,o/a3", members, 1.0, kind, embedding_seconds=2.0, seen=0.25, prompt="")
    results[1].info["seen"] = 0.5
    merged = merge_seeds("A=o/a1,o/a2,o/a3", members, results)
    (row,), alone = json_rows([merged]), json_rows(results)
    main = group.task.main
    means = [one[f"{main}_mean"] for one in alone]
    assert row[f"{main}_mean"] == pytest.approx(np.mean(means))
    assert row[f"{main}_std"] == pytest.approx(np.std(means, ddof=1))
    assert row[f"{main}_std_runs"] == pytest.approx(np.sqrt(np.mean([one[f"{main}_std"] ** 2 for one in alone])))
    assert row[f"{main}_of_seeds"] == pytest.approx(means)
    assert (row["encoder"], row["members"], row["pretraining_seeds"], row["runs"]) == (group.encoder, members, 3, 9)
    assert (row["embedding_seconds"], row["seen"], row["prompt"]) == (6.0, 0.5, "")
    assert row["test_documents"] == 90
    assert row["macro_f1_mean"] == pytest.approx(np.mean([one["macro_f1_mean"] for one in alone]))
    results[0].info["seen"] = None  # unknown of one is unknown of all
    assert json_rows([merge_seeds("A", members, results)])[0]["seen"] is None
    with pytest.raises(ValueError, match="not measured alike"):
        merge_seeds("A", members, [*results[:2], make_result("o/a3", 1.0, kind, "mlp")])


@pytest.mark.parametrize("kind", TASKS)
def test_an_encoder_with_a_name_has_the_rows_that_it_has_without(kind):
    alone = make_result("o/a1", 1.0, kind)
    assert merge_members("o/a1", ["o/a1"], [[alone]]) == [alone]
    (named,) = merge_members("A=o/a1", ["o/a1"], [[alone]])
    (row,) = rows([named])
    assert row.to_json() == json_rows([alone])[0] | {"encoder": "A=o/a1", "members": ["o/a1"]}
    others = rows([make_result("o/lr=1", 1.0, kind)])
    assert names_of([row, *others]) == {"A=o/a1": "A", "o/lr=1": "o/lr=1"}
    assert table_notes([row], named.task) == table_notes(rows([alone]), alone.task)
    columns = [cells(result_tables(own, named.task).split("\n")[2]) for own in ([row], rows([alone]))]
    assert columns[0] == columns[1]  # no "seeds" that there was not


@pytest.mark.parametrize("kind", TASKS)
def test_a_head_that_gives_one_class_is_marked_in_row_log_and_table(kind, caplog):
    good = make_result("good", 3.0, kind, features="standardized")
    assert rows([good])[0].warning is None
    scores = np.full_like(make_scores(1.0, kind), 0.1)
    scores[..., -1] = 0.9
    scores[:, :4] = make_scores(9.0, kind)[:, :4]  # 4 of 90 otherwise
    output = HeadOutput(scores, 1.5, 100)
    with caplog.at_level("WARNING"):
        if kind == "links":
            bad = link_result(System(encoder="bad", head="linear"), output, LINKED)
        else:
            bad = classification_result(System(encoder="bad", head="linear"), output, make_split(kind))
    row = rows([bad])[0]
    assert row.warning.startswith("predicts one " + ("set of labels" if kind == "multi" else "class"))
    assert f"'bad' with head 'linear' (shots: None), raw: {row.warning}." in caplog.text
    table = rows([good, bad])
    assert "†" in result_tables(table, bad.task).split("| bad")[1]
    assert "†" not in result_tables(table, bad.task).split("| bad")[0]
    assert any(note.startswith("† bad, linear") and row.warning in note for note in table_notes(table, bad.task))
    assert bad.warning.endswith(" in 3 of 3 runs")
    one_in_three = replace(bad, one_class=np.array([1.0, 0.5, 0.5]))  # two that learnt do not hide one that did not
    assert one_in_three.warning.endswith(" in 1 of 3 runs")
    assert replace(bad, one_class=np.array([0.95, 0.9, 0.9])).warning is None
