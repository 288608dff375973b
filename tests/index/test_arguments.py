"""The options of search.py's verbs."""

import argparse
from pathlib import Path
from typing import get_args

import pytest

from docsplit.index import arguments


def parsed(verb, *words):
    parser = argparse.ArgumentParser()
    getattr(arguments, f"{verb}_options")(parser)
    return vars(parser.parse_args(words))


def test_defaults_are_those_of_the_help():
    reads = {"text_column": "text", "id_column": None, "engine": "here"}
    assert parsed("add", "notes") == reads | {"documents": Path("notes"), "replace": False, "model": None,
                                              "refit": "auto"}  # fmt: skip
    built = parsed("build", "notes", "--model", "m", "--index_dir", "i")
    assert built.items() >= (reads | {"passage_words": 100, "pooling": None, "prompt": None}).items()
    assert parsed("query") == {"text": None, "method": "hybrid", "count": 10, "model": None}
    assert parsed("export", "--to", "milvus", "notes.db")["name"] == "documents"


@pytest.mark.parametrize("refit", [*get_args(arguments.Refit), "sometimes"])
def test_refitting_has_three_ways(refit, capsys):
    if refit == "sometimes":
        with pytest.raises(SystemExit):
            parsed("add", "notes", "--refit", refit)
        assert "invalid choice: 'sometimes'" in capsys.readouterr().err
    else:
        assert parsed("add", "notes", "--refit", refit)["refit"] == refit
