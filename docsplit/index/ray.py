"""Bulk embedding on Ray: texts in shards, embedded by Ray Data's workers, on this machine or on a cluster.

An index is built as it always is; its vectors alone come from elsewhere. Texts and vectors travel through Ray, so the
machines share no file system, and what a worker has embedded is a file here as soon as it arrives. A shard that has
its file is not embedded again: a build that was stopped goes on. A worker that dies is started anew, as often as it
takes, and embeds its shard again.
"""

import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from docsplit.data.readers.base import normalized
from docsplit.embedding.encode import CODE
from docsplit.embedding.encoder import Description, Encoder
from docsplit.runtime.files import fingerprint, hash_of_code, versions, write_whole

logger = logging.getLogger(__name__)

Shard = dict[str, Any]  # a row of Ray's: `start`, its first text's number, and `texts`, or `count` and `vectors`
SHARD_TEXTS = 256  # enough to sort by length; few enough to be lost, and to give each worker some


def embedder_on_ray(encoder: Encoder) -> Callable[[Sequence[str]], np.ndarray]:
    """Return `encoder.embed_for_index`, computed by the workers of a Ray cluster.

    The cluster is that of RAY_ADDRESS or `ray start`, else this machine alone until the process ends. Each GPU that
    the cluster has when texts come gets a worker, or each CPU if it has no GPU.

    Args:
        encoder: with a `cache_dir`, where the vectors of finished shards are kept.

    Returns: texts to vectors (N, H) float32; it raises a ValueError if a worker cannot load the encoder or embed a
        shard, with its reason.

    Raises:
        ValueError: if Ray is not installed.
        ConnectionError: if the cluster does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
    try:
        import ray.data
    except ImportError as error:
        raise ValueError(
            f"--engine ray needs Ray, which is not installed ({error}): pip install 'ray[data]', the extra `ray`."
        ) from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    facts = [encoder.description | {"name": None}, versions(), hash_of_code(*CODE, "docsplit/runtime/vectors.py")]
    assert encoder.cache_dir is not None
    return partial(_embed, encoder.description, encoder.cache_dir / f"ray-{fingerprint(*facts)}")


def _embed(description: Description, folder: Path, texts: Sequence[str]) -> np.ndarray:
    texts, files = list(map(normalized, texts)), []  # Arrow takes no lone surrogate
    missing: list[dict[str, Any]] = []
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(texts), SHARD_TEXTS):
        shard = texts[start : start + SHARD_TEXTS]
        files.append(folder / f"{fingerprint(texts=shard)}.f32")
        if not files[-1].exists():
            missing.append({"start": start, "texts": shard})
    done = len(texts) - sum(len(shard["texts"]) for shard in missing)
    with tqdm(total=len(texts), initial=done, desc="Embedding on Ray", unit="text") as progress:
        for start, vectors in _vectors_of(missing, description):
            write_whole(files[start // SHARD_TEXTS], partial(Path.write_bytes, data=vectors.tobytes()))
            progress.update(len(vectors))
    return np.concatenate([np.fromfile(file, np.float32) for file in files]).reshape(len(texts), -1)


def _vectors_of(shards: list[Shard], description: Description) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each shard's start and vectors (texts of the shard, H), in the order in which they come."""
    import ray.data
    from ray.exceptions import RayError

    if not shards:
        return
    has = ray.cluster_resources()
    workers = min(int(has.get("GPU", 0)) or int(has["CPU"]), len(shards))
    # Half a CPU each: with all of them taken, whatever else Ray has to do would wait for ever.
    needs = {"num_gpus": 1} if has.get("GPU", 0) >= 1 else {"num_cpus": 0.5}
    embedded = ray.data.from_items(shards, override_num_blocks=len(shards)).map_batches(
        _Worker,
        fn_constructor_args=(description,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        **needs,
    )
    try:
        for row in embedded.iter_rows():
            vectors = np.frombuffer(row["vectors"], dtype=np.float32)
            yield int(row["start"]), vectors.reshape(int(row["count"]), -1)
    except RayError as error:
        reason = str(error).strip().splitlines()[-1]  # above it a traceback, as text
        raise ValueError(f"A worker of Ray failed: {reason}") from error


class _Worker:
    """A worker's state: the encoder, loaded by its name."""

    def __init__(self, description: Description):
        encoder = Encoder.of(description)
        if encoder.description["hash"] != description["hash"]:
            raise ValueError(
                f"{description['name']} is another encoder on {platform.node()} than where the build starts."
            )
        self.encoder = encoder

    def __call__(self, shard: dict[str, np.ndarray]) -> Shard:
        vectors = self.encoder.embed_for_index(shard["texts"][0].tolist())
        return {"start": shard["start"], "count": [len(vectors)], "vectors": [vectors.tobytes()]}
