"""What is written does not depend on the order of Python's sets, which is another in each process."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import make_corpus
from tests.processes import ROOT

WRITE = """
import json, sys
from pathlib import Path
from accelerate.state import AcceleratorState
from docsplit import Classifier
from docsplit.embedding.encode import identity
from docsplit.modeling.loading import load_encoder
from docsplit.modeling.start import setting_names
from run_docsplit_pretraining import main

start, documents, folder, *resumed = map(Path, sys.argv[1:])

def train(output_dir, steps, *more):
    AcceleratorState._reset_state(reset_partial_state=True)
    sys.argv[1:] = [
        "--model_name_or_path", str(start), "--corpus", str(documents), "--output_dir", str(output_dir), "--use_cpu",
        "--lora_r", "2", "--view", "docsplit", "--contrastive_temperature", "0.1", "--mlm_weight", "0",
        "--max_seq_length", "48", "--per_device_train_batch_size", "4", "--save_steps", "2", "--logging_steps", "1",
        "--max_steps", str(steps), "--disable_tqdm", "true", *more,
    ]
    main()

train(folder / "run", 4)
rows = list(map(json.loads, documents.read_text().splitlines()))
texts, labels = [row["text"] for row in rows], [row["label"] for row in rows]
Classifier(str(start)).fit(texts[:40], labels[:40], texts[40:]).save(folder / "classifier")
for output_dir in resumed:
    train(output_dir, 6, "--resume_from_checkpoint")
print("".join({*setting_names()}), identity(load_encoder(str(folder / "run"))))
"""
ITS_OWN = re.compile(  # names and times of a run, and what they change
    "seconds|runtime|per_second|loader_stall|^(written|checksum|xxh3|size|process|run|begun|total_flos)$"
)


def contents(folder: Path) -> dict[str, object]:
    """All files below a folder but pictures: JSON without what is a run's own, with its names in their order."""
    parts = dict[str, object]()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".png", ".bin")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".json":
            parts[name] = json.dumps(json.loads(path.read_text(), object_pairs_hook=without_its_own))
        elif path.suffix == ".md":
            parts[name] = re.sub(r"\| tokens a second .*", "", path.read_text())
        else:
            parts[name] = path.read_bytes()
    return parts


def without_its_own(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return {name: value for name, value in pairs if not ITS_OWN.search(name)}


def test_two_hash_seeds_write_the_same_and_a_run_goes_on_under_another(headless, tmp_path):
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps(row) + "\n" for row in make_corpus(60)))

    def write(seed: str, *resumed: Path) -> tuple[str, str, list[str]]:
        environment = os.environ | {"PYTHONHASHSEED": seed, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
        words = [sys.executable, "-c", WRITE, headless, documents, tmp_path / seed, *resumed]
        result = subprocess.run(words, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)
        assert result.returncode == 0, result.stderr
        keys = sorted(map(str, (tmp_path / "cache" / "docsplit").glob("**/")))
        return *result.stdout.split()[-2:], keys

    order, identity, keys = write("1")
    copy = shutil.copytree(tmp_path / "1" / "run", tmp_path / "resumed")
    other_order, other_identity, other_keys = write("2", copy)
    assert order != other_order  # else nothing is shown
    assert identity == other_identity
    assert keys == other_keys  # of a cache that both use
    first, second = (contents(tmp_path / seed) for seed in "12")
    assert list(first) == list(second)
    assert {"run/checkpoint-4/checkpoint_manifest.json", "run/README.md", "classifier/classifier.json"} < {*first}
    assert [name for name in first if first[name] != second[name]] == []
    assert (copy / "checkpoint-6").is_dir()
