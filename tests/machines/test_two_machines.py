"""Two machines without a common file system: one process each, with output folders and caches of their own."""

import os
import shutil
from pathlib import Path

import pytest

from tests.processes import finish, free_port, killed_at_the_end, start, wait_until
from tests.scripts.test_run_docsplit_pretraining import assert_same_documents, assert_same_weights, words

OPTIONS = ("--max_steps", 6, "--save_steps", 3)


class Machines:
    """Two folders, each of which is all that a machine has, and the processes that a launcher starts on them."""

    def __init__(self, folder: Path, corpus: Path):
        self.outputs = [folder / name / "run" for name in ("first", "second")]
        self.caches = [folder / name / "cache" / "docsplit" for name in ("first", "second")]
        self.corpus = corpus

    def start(self, *options, of_second=()):
        together = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0, "OMP_NUM_THREADS": 1}
        together |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        scripts = []
        for rank, (output, cache) in enumerate(zip(self.outputs, self.caches)):
            own = {"RANK": rank, "HF_DATASETS_CACHE": cache.parent}
            env = os.environ | {name: str(value) for name, value in (together | own).items()}
            further = (*options, *(of_second if rank else ()))
            scripts += start(*words(output, self.corpus, *OPTIONS, *further), env=env)
        return scripts

    def run(self, *options):
        return finish(self.start(*options))

    def errors_of(self, *options, **how):
        """The last line of each, of a run that ends at once."""
        with killed_at_the_end(self.start(*options, **how)) as scripts:
            assert wait_until(lambda: all(script.returncode is not None for script in scripts))
            assert [script.returncode for script in scripts] == [1, 1], [script.stderr for script in scripts]
            return [script.stderr.splitlines()[-1] for script in scripts]


@pytest.fixture(scope="module")
def machines(tmp_path_factory, corpus_file):
    """After a run that was stopped once three of its six steps were on the disk, and the whole of it beside."""
    machines = Machines(tmp_path_factory.mktemp("machines"), corpus_file)
    machines.log = machines.run().stderr
    machines.whole = shutil.copytree(machines.outputs[0], machines.outputs[0].with_name("whole"))
    for name in ("checkpoint-6", "model.safetensors.index.mlm.json"):
        path = machines.outputs[0] / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return machines


def test_the_first_machine_has_all_and_each_tokenises_once(machines):
    """The tokenizer, which nobody can train twice alike, is the first one's."""
    assert "is not seen by rank 1 on" in machines.log
    assert not machines.outputs[1].exists()
    assert (machines.whole / "checkpoint-3" / "rng_state_1.pth").exists()
    assert '"rng_state_1.pth"' in (machines.whole / "checkpoint-3" / "checkpoint_manifest.json").read_text()
    first, second = ([path.name.split("-")[0] for path in sorted(cache.iterdir())] for cache in machines.caches)
    assert first.count("wordpiece") == 1
    assert second.count("wordpiece") == 0
    assert first.count("rows") == second.count("rows") == 1


def test_with_a_copy_of_the_checkpoint_the_run_ends_as_without_a_stop(machines):
    """Until then all stop. Dropout is on: the second process needs its own random state back."""
    for line in machines.errors_of("--resume_from_checkpoint"):
        assert f"cannot resume from {machines.outputs[1] / 'checkpoint-3'}, as rank 0 does: it is not there" in line
    copy = machines.outputs[1] / "checkpoint-3"
    shutil.copytree(machines.outputs[0] / "checkpoint-3", copy)
    machines.run("--resume_from_checkpoint")
    assert_same_weights(machines.whole, machines.outputs[0])
    assert_same_documents(machines.whole, machines.outputs[0])
    assert [path.name for path in machines.outputs[1].iterdir()] == ["checkpoint-3"]
    shutil.rmtree(machines.outputs[1])


def test_other_documents_on_one_machine_stop_all(machines, tmp_path):
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(machines.corpus.read_text().splitlines(keepends=True)[:-1]))
    for line in machines.errors_of("--overwrite_output_dir", of_second=("--corpus", fewer, "--learning_rate", 1)):
        assert "rank 1 on " in line
        assert " in --learning_rate, the training documents (--corpus): give all machines the same" in line
