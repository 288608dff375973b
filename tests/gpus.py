"""Hide GPUs from all tests but those that need one; `tests/conftest.py` imports this before torch, which looks once.

So the others are the same on each machine. Workers of xdist inherit what their parent decided.
"""

import os
import sys


def selects_gpu_tests(words: list[str]) -> bool:
    """Whether pytest, called with these words, runs the tests that need a GPU: by -m gpu, or -m "" for all tests."""
    pairs = zip(words, [*words[1:], ""])
    chosen = [after if word == "-m" else word[2:] for word, after in pairs if word.startswith("-m")]
    return bool(chosen) and (not chosen[-1].strip() or "gpu" in chosen[-1].replace("not gpu", ""))


if "PYTEST_XDIST_WORKER" not in os.environ and not selects_gpu_tests(sys.argv[1:]):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
