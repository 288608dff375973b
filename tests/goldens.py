"""The numbers that the commands print and write, to show that a change of the code changes none of them.

    # this code and that of a commit, on the same small inputs: which numbers differ, and by how much
    python -m tests.goldens --against main
    python -m tests.goldens --against main probe search

Encoders are trained by the commit and read by both, one of each family: a checkpoint that loads otherwise shows too.
`tests.trajectories` does the same for the steps of a training.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import make_corpus
from tests.trajectories import (
    COMMON,
    ENCODER,
    GRAPH_START,
    LONGFORMER_START,
    RANDOM_START,
    ROOT,
    TOKENIZER,
    checkout,
)

TOLERANCE = 1e-4  # relative, of numbers; all else has to be equal
CLOCKS = (
    "seconds",
    "_ms",
    "runtime",
    "per_second",
    "time",
    "built",
    "version",
    "commit",
    "date",
    "hash",
    "path",
    "bytes",
)
QWEN = (
    "hidden_size=16,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=1,head_dim=8,intermediate_size=32,"
    "max_position_embeddings=80"
)
FAMILIES = {
    "bert": RANDOM_START,
    "longformer": LONGFORMER_START,
    "graph": (*GRAPH_START, "--pooling", "cls", "--view", "passages", "--passage_words", "15"),
    "decoder": (*TOKENIZER, "--model_type", "qwen3", "--config_overrides", QWEN, "--pooling", "lasttoken"),
}
PROBE = "--train_file train.jsonl --test_file test.jsonl --dtype float32 --num_seeds 2"
COMMANDS = {  # what each writes into OUT is compared, and what it prints if it ends with --json
    "probe": [f"run_probe_classification.py --model_name_or_path {ENCODER} tfidf {PROBE} --shots 5 --output_dir OUT"],
    "links": [
        f"run_aan_retrieval.py --model_name_or_path {ENCODER} --papers_file papers.jsonl "
        "--citations_file citations.tsv --heads mlp cosine bm25 --dtype float32 --output_dir OUT"
    ],
    "ranking": [
        f"run_document_retrieval.py --model_name_or_path {ENCODER} bm25 --collection collection --dtype float32 "
        "--output_dir OUT"
    ],
    "analysis": [
        f"run_embedding_analysis.py --model_name_or_path {ENCODER} tfidf {PROBE} --sample_documents 40 "
        "--analyses similarity geometry clustering --output_dir OUT"
    ],
    "search": [
        f"search.py build notes --model {ENCODER} --index_dir OUT/notes.index --passage_words 20 --json",
        "search.py query OUT/notes.index ship_in_a_storm --json",
        "search.py query OUT/notes.index ship_in_a_storm --method dense --json",
        "search.py query OUT/notes.index ship_in_a_storm --method bm25 --json",
        "search.py delete OUT/notes.index 3.txt --json",
        "search.py add OUT/notes.index more --json",
        "search.py duplicates OUT/notes.index --json",
        "search.py clusters OUT/notes.index --count 3 --json",
        "search.py query OUT/notes.index bread_and_butter --json",
    ],
    "adapt": [
        f"adapt.py {ENCODER} notes OUT/adapted --dtype float32",
        "search.py build notes --model OUT/adapted --index_dir OUT/notes.index --json",
        "search.py query OUT/notes.index ship_in_a_storm --method dense --json",
    ],
    **{
        f"{family} checkpoint": [
            f"search.py build notes --model ../families/{family} --index_dir OUT/notes.index --json",
            "search.py query OUT/notes.index ship_in_a_storm --method dense --json",
        ]
        for family in FAMILIES
    },
}


def write_inputs(folder: Path) -> None:
    """Write labelled documents, papers, a collection and notes."""
    rows = make_corpus(240, seed=3)
    rng = np.random.default_rng(0)

    def lines(path: str, items: Any) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("".join(f"{item}\n" for item in items))

    lines("train.jsonl", map(json.dumps, rows[:90]))
    lines("test.jsonl", map(json.dumps, rows[90:160]))
    papers = [{"id": f"P{number}", "title": f"Paper {number}", "text": row["text"]} for number, row in enumerate(rows)]
    lines("papers.jsonl", map(json.dumps, papers))
    cited = [(citing, 3 * int(rng.integers(80)) + citing % 3) for citing in range(240) for _ in range(4)]
    lines("citations.tsv", ["citing\tcited", *(f"P{citing}\tP{to}" for citing, to in cited if citing != to)])
    documents = [{"_id": f"d{number}", "title": "", "text": row["text"]} for number, row in enumerate(rows[:60])]
    queries = [{"_id": f"q{number}", "text": rows[number]["text"][:30]} for number in range(24)]
    lines("collection/corpus.jsonl", map(json.dumps, documents))
    lines("collection/queries.jsonl", map(json.dumps, queries))
    judged = [f"q{query}\td{document}\t1" for query in range(24) for document in (query, query + 3)]
    lines("collection/qrels/test.tsv", ["query-id\tcorpus-id\tscore", *judged])
    for number, row in enumerate(rows[:24]):
        lines(f"notes/{number}.txt", [row["text"]])
    lines("more/copy.txt", [rows[5]["text"]])
    lines("more/new.txt", [rows[30]["text"]])


def call(code: Path, words: list[str], folder: Path) -> str:
    """Run a script of a checkout, and return what it prints.

    Raises:
        RuntimeError: if it fails, with the end of its log.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_CACHE": str(folder / "datasets_cache")}
    command = [sys.executable, str(code / words[0]), *words[1:]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stderr[-3000:]}")
    return done.stdout


def outcome(code: Path, name: str, folder: Path) -> dict[str, Any]:
    """Run the commands of a name in a folder of their own; return the leaves of their JSON by their place."""
    folder.mkdir(parents=True)
    write_inputs(folder)
    leaves: dict[str, Any] = {}
    for number, command in enumerate(COMMANDS[name]):
        words = [
            word.replace("ship_in_a_storm", "ship in a storm").replace("_and_", " and ") for word in command.split()
        ]
        printed = call(code, words, folder)
        if words[-1] == "--json":
            leaves |= dict(leaves_of(json.loads(printed), f"{number} {words[0]} {words[1]}"))
    for file in ("results.json", "analysis.json"):
        if (folder / "OUT" / file).exists():
            leaves |= dict(leaves_of(json.loads((folder / "OUT" / file).read_text()), file))
    return leaves


def leaves_of(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of JSON with their places, without clocks and what names the code or a folder."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not any(clock in key for clock in CLOCKS):
                yield from leaves_of(inner, f"{place}: {key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves_of(inner, f"{place}[{number}]")
    else:
        yield place, value


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Say in a line each where two outcomes differ."""
    found = [f"{place}: only one has it" for place in sorted(ours.keys() ^ theirs.keys())]
    for place in ours.keys() & theirs.keys():
        mine, other = ours[place], theirs[place]
        are_numbers = isinstance(mine, int | float) and isinstance(other, int | float)
        if not (mine == other or (are_numbers and math.isclose(mine, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE))):
            found.append(f"{place}: {mine!r}, was {other!r}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", required=True, help="compare with the code of this commit")
    parser.add_argument("names", nargs="*", metavar="name", help=f"default: all of {', '.join(COMMANDS)}")
    arguments = parser.parse_args()
    all_equal = True
    with tempfile.TemporaryDirectory() as folder, checkout(arguments.against, Path(folder) / "code") as code:
        names = arguments.names or list(COMMANDS)
        for family, start in FAMILIES.items():
            if f"{family} checkpoint" in names:
                words = [*COMMON, *start, "--max_steps", "3", "--save_strategy", "no"]
                words += ["--output_dir", str(Path(folder) / "families" / family)]
                call(code, ["run_docsplit_pretraining.py", *words], Path(folder))
        for name in names:
            # Both run at one place, one after the other, for outcomes name it
            place = Path(folder) / "work"
            both = []
            for each in (ROOT, code):
                both.append(outcome(each, name, place))
                place.rename(Path(folder) / f"{name}-{len(both)}")
            found = differences(*both)
            all_equal = all_equal and not found
            print(f"{name:22} {'equal' if not found else 'DIFFERENT'} ({len(both[0])} values)", flush=True)
            for line in found[:20]:
                print(f"    {line}", flush=True)
    sys.exit(not all_equal)


if __name__ == "__main__":
    main()
