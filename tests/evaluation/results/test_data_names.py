"""What results and cards call the data: a name, what was done to it, and no folder of somebody's machine."""

import pytest

from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.evaluation.results.data_names import describe_data, without_folders


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "somebody"))
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / "data" / "news").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "news" / name).touch()


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        ({}, None, "python_docs"),
        (
            {"train_file": "data/news/train.jsonl", "test_file": "data/news/test.jsonl"},
            None,
            "news (train.jsonl, test.jsonl), text column text",
        ),
        (
            {
                "train_file": "/secret/place/train.parquet",
                "strip_newsgroups": ["headers", "footers", "quotes"],
                "max_train_samples": 5000,
                "max_test_samples": 3000,
            },
            "20 Newsgroups bydate",
            "20 Newsgroups bydate, test part drawn here, headers, footers, quotes stripped, a stratified sample "
            "of at most 5,000 training and 3,000 test documents, text column text",
        ),
        (
            {"dataset_name": "coastalcph/lex_glue:ecthr_b", "max_test_samples": 100, "text_column": ["title", "body"]},
            None,
            "coastalcph/lex_glue:ecthr_b, a stratified sample of at most 100 test documents, text column title + body",
        ),
        ({"dataset_name": "/secret/place/news"}, None, "news, text column text"),
    ],
)
def test_labelled_documents(options, name, expected):
    assert describe_data(LabelledArguments(**options), name) == expected


def test_paths_lose_their_folders_and_words_stay(tmp_path):
    (tmp_path / "docsplit").mkdir()  # as in the project, where it is a view too
    for word in (
        "docsplit",
        "wikimedia/wikipedia:20231101.en",
        "hidden_size=64,num_hidden_layers=2",
        "x/" + "y" * 5000,
    ):
        assert without_folders(word) == word
    for path in ("/secret/place/train.jsonl", "~/news/train.jsonl", "../somebody/train.jsonl"):
        assert without_folders(path) == "train.jsonl"
    assert without_folders("data/news/train.jsonl") == "news/train.jsonl"
