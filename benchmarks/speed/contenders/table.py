"""The contenders of `benchmarks.speed.training`: each lives in a process of its own and sleeps until it is asked.

    docsplit                 DocSplitForContrastivePretraining in a stock Trainer
    docsplit_cached          the same with `cache_gradients`
    trainer_pad512           the plain way: BertForMaskedLM in a stock Trainer, all views padded to 512 tokens
    trainer_dynamic          the same, padded to the longest view of the batch
    trainer_group_by_length  the same, with batches of documents of similar length
    docsplit_contrastive     docsplit without masked LM, to compare with the two below, which have none
    st_mnrl                  sentence-transformers' MultipleNegativesRankingLoss
    st_cached_mnrl           sentence-transformers' CachedMultipleNegativesRankingLoss
    docsplit_encode          docsplit.embedding.encode
    st_encode                SentenceTransformer.encode

All train on the same documents from the same weights with the same loss: InfoNCE at temperature 0.05 in one direction,
plus 0.1 times masked LM where there is any. Documents are random (`benchmarks/speed/jobs.py`); encoding has the
built-in corpus. Needs torch, transformers and accelerate, sentence-transformers for the contenders that begin with
`st_`, and for encoding all of requirements.txt. A contender whose packages are not installed is reported as
unavailable.
"""

import functools
import traceback
from multiprocessing.connection import Connection
from typing import Any

import transformers

from benchmarks.speed.contenders.encoding import DocSplitEncode, SentenceTransformerEncode
from benchmarks.speed.contenders.training import DocSplit, Plain, SentenceTransformersLoss
from benchmarks.speed.jobs import MAX_LENGTH, Job
from benchmarks.speed.meters import MatrixProducts

CONTENDERS: dict[str, Any] = {
    "docsplit": DocSplit,
    "docsplit_cached": functools.partial(DocSplit, cache_gradients=True),
    "trainer_pad512": functools.partial(Plain, pad_to=MAX_LENGTH),
    "trainer_dynamic": Plain,
    "trainer_group_by_length": functools.partial(Plain, grouped=True),
    "docsplit_contrastive": functools.partial(DocSplit, mlm=False),
    "st_mnrl": functools.partial(SentenceTransformersLoss, cached=False),
    "st_cached_mnrl": functools.partial(SentenceTransformersLoss, cached=True),
    "docsplit_encode": DocSplitEncode,
    "st_encode": SentenceTransformerEncode,
}


def serve(name: Any, job: Job, connection: Connection) -> None:
    """Answer requests (method, *arguments) with (done | unavailable | failed, value or reason), until one is None.

    Args:
        name: of `CONTENDERS`; or a class like them.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    contender: Any = None
    while (request := connection.recv()) is not None:
        method, *arguments = request
        try:
            kinds: dict[Any, Any] = CONTENDERS | {"matrix_products": MatrixProducts}
            contender = contender or kinds.get(name, name)(job)
            connection.send(("done", getattr(contender, method)(*arguments)))
        except ModuleNotFoundError as error:
            connection.send(("unavailable", f"{error.name} is not installed"))
        except Exception:
            connection.send(("failed", traceback.format_exc()))
