"""Label documents by a few that you have labelled, or by the names of the classes: fit, keep and use a classifier.

    MODEL=sentence-transformers/all-MiniLM-L6-v2
    python classify.py fit labelled.csv --documents unlabelled/ --model $MODEL --output_dir outputs/classifier
    python classify.py fit --classes names.txt --documents unlabelled/ --model $MODEL --output_dir outputs/classifier
    python classify.py fit labelled.csv --documents unlabelled/ --model none --output_dir outputs/classifier
    python classify.py predict outputs/classifier new_documents/ --output_file labels.csv
    python classify.py predict outputs/classifier new_documents/ --unsure 0.5     # no label below that probability
    python classify.py next outputs/classifier unlabelled/ --output_file next.csv  # what to label next

Labelled documents are rows of .csv, .xlsx, .jsonl or .parquet with a text and a label; a document with several labels
has a list of them, or in a .csv `a; b` with --label_separator ";". A table without texts names files of --documents,
in a column `file` or `id`. Documents without labels teach the words and the head. The score that is printed comes from
documents that neither the head nor the choice of features saw (docs/classifying.md). Every verb takes --json, for
other programs.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import argparse
import logging
from pathlib import Path
from typing import Any

from docsplit.runtime.bounds import Bound
from docsplit.runtime.command import as_json, command_line, log_messages, shown
from docsplit.runtime.files import refuse_missing_path
from docsplit.runtime.options import CommandParser, add_plugin
from docsplit.runtime.tables import cell_of, prepare_table, write_table

logger = logging.getLogger(__name__)

WORST = 5  # classes that are printed; the folder and --json have all
BEGINNING, SHORT = 100, 70  # characters of a document, for who looks at its label: in a table, on the screen
FEATURE_CHOICES = ("auto", "words_and_tfidf", "encoder_and_tfidf", "encoder", "tfidf")


def fit(options: argparse.Namespace) -> None:
    """Fit a classifier, write it, and say what it is worth."""
    from dataclasses import asdict

    from docsplit.data.readers.base import Problems
    from docsplit.data.readers.files import File
    from docsplit.data.sets.labelled import some
    from docsplit.runtime.sharing import refuse_used

    refuse_used(options.output_dir, "name another folder")  # before any long work
    if not options.classes and not options.labelled:
        raise ValueError("Nothing is labelled: name a table with labels, or --classes with the names of the classes.")
    classes = None
    if options.classes:
        problems = Problems()
        classes = File(options.classes, str(options.classes)).text(problems, options.encoding).splitlines()
        problems.log()
    ids, texts, labels, documents = read_labelled(options)
    from docsplit.classifier import Classifier  # which takes seconds

    classifier = Classifier(options.model, options.features, options.seed, options.prompt, options.max_seq_length)
    classifier.fit(texts, labels, documents, classes)
    classifier.columns_ = options.text_column
    classifier.save(options.output_dir, options.include_encoder)
    held_out = [
        {"id": ids[one.row], "label": one.label, "guess": one.guess, "probability": round(one.probability, 4)}
        | {"of_label": one.of_label and round(one.of_label, 4)}
        | {"beginning": beginning_of(texts[one.row])}
        for one in classifier.held_out_
    ]
    doubtful = [row for row, one in zip(held_out, classifier.held_out_) if one.is_doubtful]
    doubtful.sort(key=lambda row: row["of_label"] / row["probability"])
    write_table(options.output_dir / "held_out.csv", held_out)
    write_table(options.output_dir / "doubtful.csv", doubtful)
    examples = [
        {"class": of.label, "documents": of.documents, "kind": kind, "next": second, "beginning": beginning_of(text)}
        for of in classifier.examples_
        for kind, second, text in [
            *(("typical", None, text) for text in of.typical),
            *(("doubtful", second, text) for text, second in of.doubtful),
        ]
    ]
    if classifier.examples_:
        write_table(options.output_dir / "examples.csv", examples)
    score = asdict(classifier.score_)
    if options.json:
        about: dict[str, Any] = {
            "output_dir": str(options.output_dir),
            "features": classifier.features_,
            "score": score,
        }
        about |= {"classes": classifier.classes_.tolist(), "counts": classifier.counts_}
        about |= {"self_trained": classifier.self_trained_, "doubtful": doubtful, "examples": examples}
        print(as_json(about | {"seconds": classifier.seconds_}))
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in classifier.counts_.items() if count)
    print(f"\nDocuments of {len(classifier.classes_)} classes: {counts}.")
    tried = ", ".join(f"{name} {100 * value:.1f}" for name, value in score["choice"].items())
    sources = {
        "labelled documents": classifier.counts_["labelled"],
        "unlabelled documents": classifier.self_trained_,
        "names of classes": classes,
    }
    read = " and ".join(name for name, there in sources.items() if there)
    chosen = f", the best of {tried} in the choice" if tried else ""
    print(f"The head learnt from {classifier.features_} of {read}{chosen}.")
    if examples:
        for of in sorted(classifier.examples_, key=lambda of: of.documents)[:WORST]:
            print(f"{shown(of.label)}: {of.documents:,} documents")
            for text in of.typical:
                print(f"  typical   {shown(beginning_of(text)[:SHORT])}")
            for text, second in of.doubtful:
                print(f"  doubtful, or {shown(second)}   {shown(beginning_of(text)[:SHORT])}")
        print(f"Do the names fit? {options.output_dir / 'examples.csv'} has such documents of all classes.")
    if alone := score["copies_alone"]:
        print(f"No score for {some([str(label) for label in alone])}: all documents are near copies of one another.")
    elif score["value"] is None:
        print("No score, and probabilities that nothing measures: label 30 documents, drawn by chance, for both.")
    if score["value"] is not None:
        print(
            f"Score on documents held out: {100 * score['value']:.1f} % {score['metric']} "
            f"({100 * score['low']:.1f} to {100 * score['high']:.1f}; {score['documents']:,} documents); "
            f"the commonest class, {shown(str(score['commonest']))}, for all: {100 * score['baseline']:.1f} %."
        )
        worst = [one for one in classifier.score_.classes if one.found < one.documents]
        worst = sorted(worst, key=lambda of_class: of_class.recall)[:WORST]
        if found := ", ".join(f"{shown(str(one.label))} {one.found} of {one.documents}" for one in worst):
            print(f"Found least of: {found}.")
    if doubtful:
        print(
            f"Labels that look wrong: {len(doubtful):,} of {len(held_out):,} held out, the surest first in "
            f"{options.output_dir / 'doubtful.csv'}. Put them right in your table."
        )
    if score["sure_accuracy"] is not None:
        share, right = 100 * score["sure"], 100 * score["sure_accuracy"]
        print(f"With --unsure 0.5, {share:.0f} % of documents get a label, and {right:.0f} % of these are right.")
    print(f"Seconds: {', '.join(f'{part} {taken:.1f}' for part, taken in classifier.seconds_.items())}.")
    print(f"Next: {command_line('classify.py', 'predict', options.output_dir, 'new_documents/')}")


def read_labelled(options: argparse.Namespace) -> tuple[list[str], list[Any], Any, list[str]]:
    """Read the ids, texts and labels of tables, and the documents without labels; of python_docs none that is sealed.

    Texts are in a table, or, if it has no column of them, in the documents, which then have the table's ids.

    Raises:
        ValueError: naming the columns that there are, or ids that no document has.
    """
    from docsplit.data.corpora import EXPECTED_CORPUS, documents_to_search, for_pretraining, load_corpus
    from docsplit.data.readers.base import TableColumns, normalized
    from docsplit.data.readers.rows import ID_COLUMNS, refuse_missing_columns
    from docsplit.data.sets.labelled import read_labelled_texts, some
    from docsplit.data.sets.labels import LabelColumn

    text, *more = options.text_column
    ids: list[str] = []
    texts: list[Any] = []
    columns: list[LabelColumn] = []
    text_of: dict[str, str] = {}
    for table in options.labelled:
        refuse_missing_path(table, EXPECTED_CORPUS)
        dataset = for_pretraining(table, load_corpus(table, encoding=options.encoding))
        column = LabelColumn.of(dataset, options.label_column, table)
        if separator := options.label_separator:
            cells = [cell and [part for part in str(cell).split(separator) if part.strip()] for cell in column.values]
            column = LabelColumn(cells, source=table)
        columns.append(column)
        wanted = (options.id_column,) if options.id_column else (*ID_COLUMNS, "file")
        named = next((name for name in wanted if name in dataset.column_names), None)
        if options.id_column and not named:
            refuse_missing_columns("--id_column", [options.id_column], dataset.column_names, table)
        values = dataset[named][:] if named else [f"{Path(table).name}#{row}" for row in range(len(dataset))]
        of_table = [normalized(str(value)) for value in values]
        if text not in dataset.column_names and named and not options.documents:
            raise ValueError(
                f"{table} has no column {text}, and no --documents have the ids of its column {named}: name them, or "
                f"another --text_column. The columns are {dataset.column_names}."
            )
        if text in dataset.column_names or not named:
            texts += read_labelled_texts(dataset, options.text_column, (), table)
        else:
            of_documents = TableColumns(text, options.id_column, options.encoding, tuple(more))
            found = documents_to_search(Path(options.documents), of_documents)
            text_of = text_of or {document.id: document.text for document in found}
            if missing := [name for name in of_table if name not in text_of]:
                raise ValueError(
                    f"{len(missing):,} of {len(of_table):,} ids of {table}, in its column {named}, are no document of "
                    f"{options.documents}: {some(missing[:3])}. Ids there are such as {some([*text_of][:3])}. "
                    f"--id_column names another column of ids, --text_column one of texts: {dataset.column_names}."
                )
            texts += [text_of[name] for name in of_table]
        ids += of_table
    documents = [*text_of.values()]
    if not text_of and options.documents:  # which have not been read
        read = load_corpus(options.documents, text_column=text, encoding=options.encoding)
        dataset = for_pretraining(options.documents, read)
        there = [text, *(column for column in more if column in dataset.column_names)]
        documents = [whole or "" for whole in read_labelled_texts(dataset, there, (), options.documents)]
    return ids, texts, columns, documents


def read_documents(options: argparse.Namespace) -> tuple[Any, list[Any]]:
    """Load the classifier, and read the documents that it is for."""
    from docsplit.data.corpora import PYTHON_DOCS, documents_to_search
    from docsplit.data.readers.base import TableColumns
    from docsplit.data.readers.files import find_files

    if options.output_file is not None:  # before any long work
        prepare_table(options.output_file)
    if not str(options.documents).startswith(PYTHON_DOCS):
        find_files(options.documents)
    from docsplit.classifier import Classifier  # which takes seconds
    from docsplit.embedding.encode import reading_of

    classifier = Classifier.load(options.classifier, options.model)
    text, *more = options.text_column or classifier.columns_
    columns = TableColumns(text, options.id_column, options.encoding, tuple(more))
    documents = list(documents_to_search(options.documents, columns))
    if classifier.model_ is not None:
        read = reading_of(classifier.model_, [document.text for document in documents], can_change=False)
        logger.info(f"{classifier.encoder}: {read}.")
    return classifier, documents


def to_label(options: argparse.Namespace) -> None:
    """Name the documents whose labels help most, and write a table to fill in."""
    classifier, documents = read_documents(options)
    rows = [
        {"id": documents[row].id, "label": None, "likeliest": label, "probability": round(probability, 4)}
        | dict(zip(classifier.columns_, [documents[row].text, *[""] * len(classifier.columns_)]))
        for row, label, probability in classifier.to_label([document.text for document in documents], options.count)
    ]
    if options.output_file is not None:
        write_table(options.output_file, rows)
    if options.json:
        print(as_json(rows))
        return
    if not rows:
        print("There is no document with text and without a label.")
        return
    for row in rows if options.output_file is None else rows[:10]:
        likeliest = f"{shown(cell_of(row['likeliest']))} {row['probability']}"
        print(f"{shown(row['id'])}  {likeliest}  {shown(beginning_of(row[classifier.columns_[0]]))}")
    if options.output_file is not None:
        print(f"All {len(rows):,} are in {options.output_file}: fill in its column label, and fit again with it:")
        words: list[Any] = ["labelled.csv"] if classifier.counts_["labelled"] else ["--classes", "names.txt"]
        words = [options.output_file, *words, "--documents", options.documents, "--model", classifier.encoder]
        print(command_line("classify.py", "fit", *words, "--output_dir", "another/"))


def predict(options: argparse.Namespace) -> None:
    """Label documents, and print or write a line for each."""
    classifier, documents = read_documents(options)
    if classifier.score_.value is None:
        logger.warning("No labelled documents measured this classifier: its probabilities are not calibrated.")
    texts = [document.text for document in documents]
    rows: list[dict[str, Any]] = []
    top = options.top if options.top is not None else int(options.unsure > 0)
    for document, of in zip(documents, classifier.predictions(texts, options.unsure, options.threshold, top)):
        row: dict[str, Any]
        if classifier.several_:
            row = {"labels": [label for label, _ in of.labels], "probabilities": [round(p, 4) for _, p in of.labels]}
        else:
            label, probability = of.labels[0] if of.labels else (None, None)
            row = {"label": label, "probability": probability and round(probability, 4)}
        for place in range(1, 1 + min(top, len(classifier.classes_))):
            label, probability = of.likeliest[place - 1] if of.likeliest else (None, None)
            row |= {f"likeliest_{place}": label, f"probability_{place}": probability and round(probability, 4)}
        rows.append({"id": document.id} | row)
    if options.output_file is not None:
        write_table(options.output_file, rows)
    if options.json:
        print(as_json(rows))
        return
    for row in rows if options.output_file is None else rows[:10]:
        document_id, labels, values, *likeliest = map(cell_of, row.values())
        beside = ", ".join(f"{shown(label)} {value}" for label, value in zip(likeliest[::2], likeliest[1::2]) if value)
        print(f"{shown(document_id)}  {shown(labels or '-')}  {values}".rstrip() + f"  ({beside})" * bool(beside))
    if options.output_file is not None:
        print(f"All {len(rows):,} documents are in {options.output_file}.")
    without = sum(list(row.values())[1] in (None, []) for row in rows)
    print(f"{len(rows):,} documents; {without:,} of them without a label.")


def beginning_of(text: str) -> str:
    """Return how a text begins, in a line."""
    return " ".join(text.split())[:BEGINNING]


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandParser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    fit_help = "Fit a classifier to labelled documents, and say what it is worth."
    add = (of_fit := verbs.add_parser("fit", help=fit_help, description=fit_help)).add_argument
    add(
        "labelled",
        nargs="*",
        help="a table of documents with labels: .csv, .xlsx, .jsonl ..., python_docs, or of the Hub; or several",
    )
    add(
        "--model",
        required=True,
        help="SentenceTransformer or any AutoModel: Hub name or folder; none: one is made of the documents alone",
    )
    add("--output_dir", type=Path, required=True, help="new folder to write the classifier into")
    classes_help = (
        "file with a line for each class: its name, or `name: what it is about`; with labels, or without any"
    )
    add("--classes", type=Path, help=classes_help)
    add("--documents", help="documents without labels: folder of files, table, python_docs, or a data set of the Hub")
    add("--text_column", nargs="+", default=["text"], help="columns of the text; several are joined (default: text)")
    add("--label_column", default="label", help="column of the label, or of a list of labels (default: label)")
    add("--id_column", help="column of the ids; without texts, of --documents (default: id, _id, doc_id or file)")
    add("--label_separator", help="what stands between several labels in one cell of a .csv, such as ;")
    add("--encoding", help="encoding of text files (default: UTF-8, or what is detected)")
    features = "what the head reads; auto: chosen by cross-validation with 20 labels a class or more (default: auto)"
    add("--features", choices=FEATURE_CHOICES, default="auto", help=features)
    add("--prompt", help="text before each document, such as 'query: ' for E5 (default: the encoder's)")
    add(
        "--max_seq_length",
        type=Bound(3),
        help="tokens that the encoder reads of each document (default: the encoder's)",
    )
    add("--include_encoder", action="store_true", help="write the encoder into the folder too")
    add("--seed", type=Bound(0, 2**31 - 1), default=0, help="of folds and draws (default: 0)")
    predict_help = "Label new documents."
    add = (of_predict := verbs.add_parser("predict", help=predict_help, description=predict_help)).add_argument
    add(
        "--unsure", type=Bound(0, 1, kind=float), default=0.0, help="give no label below this probability (default: 0)"
    )
    threshold = "of several labels, give those from this probability on (default: 0.5)"
    add("--threshold", type=Bound(0, 1, kind=float), default=0.5, help=threshold)
    top_help = "likeliest labels to name in columns of their own, given or not (default: with --unsure 1, else none)"
    add("--top", type=Bound(1), help=top_help)
    add("--output_file", type=Path, help="new CSV file to write: id, label, probability")
    next_help = "Name the documents whose labels help most."
    add = (of_next := verbs.add_parser("next", help=next_help, description=next_help)).add_argument
    add("--count", type=Bound(1), default=20, help="documents (default: 20)")
    add("--output_file", type=Path, help="new CSV file to fill in: id, label, likeliest, probability, text")
    for add in (of_predict.add_argument, of_next.add_argument):
        add("classifier", type=Path, help="the folder of the classifier")
        add("documents", type=Path, help="folder of files, one file, or python_docs:test")
        add("--model", help="where the classifier's encoder is now (default: where it was)")
        add("--text_column", nargs="+", help="columns of the text, in .jsonl, .csv ... (default: those that fit read)")
        add("--id_column", help="column of the ids (default: id, _id or doc_id, else the row's number)")
        add("--encoding", help="encoding of text files (default: UTF-8, or what is detected)")
    for verb in (of_fit, of_predict, of_next):
        add_plugin(verb)
        verb.add_argument("--json", action="store_true", help="print JSON on standard output")
    return parser.parse_args(words)


def main() -> None:
    """Do what the verb says."""
    options = parse_options()
    log_messages(logging.WARNING if options.json else logging.INFO)
    {"fit": fit, "predict": predict, "next": to_label}[options.verb](options)


command = as_command(main)
if __name__ == "__main__":
    command()
