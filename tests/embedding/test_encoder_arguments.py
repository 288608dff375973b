"""The arguments that name encoders: one, or those of several pretraining seeds."""

import pytest

from docsplit.embedding.encoder_arguments import EncoderArgument, EncoderArguments, members_of, parse_encoder_argument


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("outputs/a", ["outputs/a"]),
        ("NAME=a,b,c", ["a", "b", "c"]),
        ("NAME=outputs/a", ["outputs/a"]),
        ("x=1", ["x=1"]),  # a folder of that name is there
        ("a,b", ["a", "b"]),
        ("outputs/lr=1,outputs/lr=2", ["outputs/lr=1", "outputs/lr=2"]),
        ("lr=1,seed=2", ["lr=1,seed=2"]),  # a folder of that name is there
        ("x=1,x=2", ["x=1", "x=2"]),  # two of these names are there
        ("name/with=sign", ["name/with=sign"]),
    ],
)
def test_the_members_of_a_group(name, members, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("lr=1,seed=2", "x=1", "x=2"):
        (tmp_path / folder).mkdir()
    assert members_of(name) == members


def test_a_folder_that_is_written_in_two_ways_is_no_two_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    for name in ("A=a,a/", "a,./a", f"a,{tmp_path}/a", "A=a,link"):
        with pytest.raises(ValueError, match="each once"):
            members_of(name)


@pytest.mark.parametrize(
    ("name", "stated", "members"),
    [
        ("user/a", ("user/a", None, None), ["user/a"]),
        ("user/a@mean", ("user/a", "mean", None), ["user/a"]),
        ("A=user/a,user/b@cls", ("A=user/a,user/b", "cls", None), ["user/a", "user/b"]),
        ("A=user/a@prompt=Of x, y=z @ w: ", ("A=user/a", None, "Of x, y=z @ w: "), ["user/a"]),
        ("a@prompt=", ("a", None, ""), ["a"]),
        ("a@max@prompt=two\nlines", ("a", "max", "two\nlines"), ["a"]),
        ("kept@mean", ("kept@mean", None, None), ["kept@mean"]),  # a folder of that name is there
        ("kept@mean@cls", ("kept@mean", "cls", None), ["kept@mean"]),
    ],
)
def test_an_argument_may_state_pooling_and_prompt(name, stated, members, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept@mean").mkdir()
    assert parse_encoder_argument(name) == EncoderArgument(*stated)
    assert members_of(name) == members
    assert EncoderArguments([name]).model_name_or_path == [name]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a,", "A=a,,b", "A=a,a", "a,tfidf", "A=", "A=tfidf"], "encoders from several pretraining seeds"),
        (["A,B=outputs/a,outputs/b"], "NAME cannot have one"),
        (
            ["user/a@meen", "A=user/a@", "user/a@mean,user/b", "user/a@prompt:x"],
            r"user/a with one of @cls, @mean.* or with @prompt=TEXT",
        ),
    ],
)
def test_what_names_no_encoders_is_refused(names, message):
    for name in names:
        with pytest.raises(ValueError, match=message):
            EncoderArguments([name])
