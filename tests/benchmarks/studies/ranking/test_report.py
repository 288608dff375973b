"""The study of training for ranking: its cells, and what its tables say."""

import json

from benchmarks.engine.results import SAMPLES
from benchmarks.engine.study import Study
from benchmarks.studies.ranking import report as ranking
from tests.benchmarks.studies.results import results_of


def test_cells_have_what_they_need(tmp_path):
    for name in ("cranfield", "wikipedia", "start"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.parquet").write_text(name)
    given = {"data_dir": str(tmp_path), "start": str(tmp_path / "start")}
    cells, waiting = Study(ranking.STUDY, tmp_path, given).cells()
    assert not waiting
    assert len(cells) == 3 * 7
    assert min(cell.name for cell in cells.values()) == "docsplit data=cranfield folds=3"  # no options in it
    known = {"{data_dir}", "{start}", "{folder}"}  # what is left to the run
    for cell in cells.values():
        words = json.dumps(cell.steps)
        for name in known:
            words = words.replace(name, "")
        options = [step["options"] for step in cell.steps]
        assert all(isinstance(option, dict) for option in options)
        assert not [part for part in words.split("{")[1:] if not part.startswith(('"', "}"))]  # all were resolved
    methods = {step["options"].get("method") for cell in cells.values() for step in cell.steps} - {None}
    kinds = {f"{method}, {kind}" for method in methods for kind in ("random", "bm25", "bm25+self")} | {"start"}
    tested = {name.rpartition(", ")[0] for pair in ranking.ORDERINGS for name in pair[:2]} - {""}
    assert tested <= kinds


def test_tables_test_the_orderings_and_show_the_papers_numbers(tmp_path):
    def rows(method, values):
        row = {"data": "cranfield", "method": method, "value": sum(values) / len(values), SAMPLES: values}
        row |= {"low": min(values), "high": max(values)}
        return [row | {"metric": metric} for metric in ranking.MEASURES]

    low, high = [0.1 + 0.01 * number for number in range(20)], [0.4 + 0.01 * number for number in range(20)]
    content = [*rows("BM25", low), *rows("graph, bm25, dense", high), *rows("graph, random, dense", low)]
    content += rows("graph, bm25, hybrid", low) + rows("BM25", high)  # the second one is another cell's
    results = results_of(content)
    lines = ranking.markdown(results).replace(" ", "").splitlines()
    assert "|BM25|19.5|19.5|19.5|" in lines
    (hard,) = [line for line in lines if line.startswith("|hardnegativeshelp")]
    assert hard.endswith("|holds|")
    assert "|+30.0|" in hard
    (hybrid,) = [line for line in lines if line.startswith("|hybridbeatsBM25")]
    assert hybrid.endswith("|nottoldapart|")
    assert "|Graph-roberta+BM25|43.90|37.21|" in lines
    assert "|Graph-roberta+BM25|37.60|61.44|" in lines
    assert "|Graph-roberta,full|22.98|18.46|14.19|24.02|19.65|15.39|" in lines  # first sentences: ahead of BM25
    assert "|BM25|28.66|22.17|16.62|22.20|16.74|12.65|" in lines
    ranking.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
