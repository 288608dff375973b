"""The name of the evaluation data in titles, tables and cards, and what was done to it."""

from pathlib import Path

from docsplit.data.sets.set_arguments import CitationArguments, LabelledArguments, RankingArguments

BUILT_IN = "python_docs"
DatasetArguments = LabelledArguments | CitationArguments | RankingArguments


def without_folders(name: str) -> str:
    """Return the name of a local file or folder without its path; a relative path keeps one folder."""
    try:
        path = Path(name).expanduser()
        if path.is_absolute() or ".." in path.parts:
            return path.name
        return "/".join(path.parts[-2:]) if path.exists() else name
    except (OSError, RuntimeError):  # too long to be a path, or of somebody who does not exist
        return name


def describe_data(options: DatasetArguments, name: str | None = None) -> str:
    """Return the evaluation data in one line: the name, and what was done to the documents.

    Args:
        options: that chose the data.
        name: what people call it. Default: the data set on the Hub, or the folder and names of the files; of an
            absolute path the file's name alone, for the card is public.
    """
    source, *preparation = filter(None, _described(options))
    return " ".join(", ".join([name or source, *preparation]).split())


def data_source(options: DatasetArguments, name: str | None = None) -> str:
    """Return the name alone, for tables."""
    return name or _described(options)[0]


def _described(options: DatasetArguments) -> list[str]:
    """Return where the data are from, then what was done to them; "" for nothing."""
    if isinstance(options, RankingArguments):
        source = without_folders(options.collection or BUILT_IN)
        made_of = options.queries or ("first_line" if source == BUILT_IN else None)
        made = f"queries made of each document's {made_of.replace('_', ' ')}" if made_of else ""
        drawn = f"{options.max_queries:,} queries drawn" if options.max_queries else ""
        return [source, f"{options.split} queries" if options.split else "", made, drawn]
    if isinstance(options, CitationArguments):
        if options.lra_dir:
            return [without_folders(options.lra_dir), "pairs of Long Range Arena"]
        if not options.papers_file:
            return [BUILT_IN, 'its "See also" links']
        if options.citations_file:
            return [_files(options.papers_file, options.citations_file), "splits that share no paper, made here"]
        pairs = [options.train_pairs_file, options.validation_pairs_file, options.test_pairs_file]
        return [_files(options.papers_file, *pairs), "pairs as given"]
    source = without_folders(options.dataset_name or BUILT_IN)  # a folder of a data set may take the place of a name
    if options.train_file:
        source = _files(options.train_file, options.validation_file, options.test_file)
    most = {"training": options.max_train_samples, "test": options.max_test_samples}
    limits = " and ".join(f"{limit:,} {part}" for part, limit in most.items() if limit is not None)
    drawn_here = source != BUILT_IN and options.train_file and not options.test_file
    return [
        source,
        "test part drawn here" if drawn_here else "",
        f"{', '.join(options.strip_newsgroups)} stripped" if options.strip_newsgroups else "",
        f"a stratified sample of at most {limits} documents" if limits else "",
        "" if source == BUILT_IN else f"text column {' + '.join(options.text_column)}",
    ]


def _files(*files: str | None) -> str:
    """Return a folder and the files in it, or files: news (train.jsonl, test.jsonl)."""
    shown = [without_folders(file) for file in files if file]
    folders = {name.rpartition("/")[0] for name in shown}
    if len(folders) > 1 or "" in folders:
        return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    return f"{folders.pop()} ({', '.join(name.rpartition('/')[2] for name in shown)})"
