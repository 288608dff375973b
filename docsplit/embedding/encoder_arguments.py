"""The options of scripts that compare encoders. Nothing heavy is imported: `--help` reads this module."""

import re
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from docsplit.modeling.pooling import PoolingMode
from docsplit.runtime.bounds import Count, Length, Seed, Whole, option
from docsplit.runtime.files import refuse_missing_path

_STATED = re.compile(rf"(.*?)(?:@({'|'.join(get_args(PoolingMode))}))?(?:@prompt=(.*))?", re.DOTALL)
LongDocuments = Literal["truncate", "chunk_mean"]


@dataclass
class EncoderArguments:
    """The encoders to compare and how they embed."""

    model_name_or_path: list[str] = option(
        MISSING,
        "Encoders to compare: Hub names or folders of SentenceTransformers or any AutoModel. NAME=PATH gives an "
        "encoder another name in the results. Pretraining seeds of one method are joined by commas, PATH,PATH,PATH or "
        "NAME=PATH,PATH,PATH: they become one row, with the mean and intervals over the seeds. PATH@mean, and "
        "PATH@prompt=TEXT or PATH@mean@prompt=TEXT, give an encoder a pooling and a prompt of its own.",
        common=True,
    )
    pooling: PoolingMode | None = option(
        None,
        "How token vectors become one embedding, for encoders that do not say: cls, mean, max, lasttoken or "
        "weightedmean. Default: cls; lasttoken for a decoder.",
        common=True,
    )
    override_pooling: PoolingMode | None = option(
        None, "Pooling for all encoders, in place of their own. Default: each keeps its own."
    )
    max_seq_length: Length | None = option(
        None,
        "Tokens read of each text, special ones included. Default: the encoder's own, by its files.",
        common=True,
    )
    long_documents: LongDocuments = option(
        "truncate",
        "What happens to longer texts: truncate keeps their beginning, chunk_mean embeds all of it in chunks and "
        "averages their vectors.",
        common=True,
    )
    prompt: str | None = option(
        None,
        "Text to put before each document, for an encoder that needs one and whose files do not say it, such as "
        "'passage: ' for E5. Default: the encoder's own.",
        common=True,
    )
    query_prompt: str | None = option(
        None,
        "Text to put before each query, where documents are ranked for queries, such as 'query: ' for E5. Default: "
        "the encoder's own.",
    )
    smooth_neighbours: Whole = option(
        0,
        "Average each vector with those of its N nearest documents (by cosine and by words), as "
        "neighbour_distillation does for its targets; 0: no averaging. Test documents are among the neighbours "
        "(transductive).",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "Precision of the encoder's matrix products; auto: bfloat16 where the hardware has it, else float32."
    )
    embedding_tokens: Count | None = option(
        None,
        "Most tokens of one forward pass, padding included; more is faster and takes more memory. Default: 2048 (GPU "
        "16384).",
    )

    def __post_init__(self) -> None:
        for name in self.model_name_or_path:
            for member in members_of(name):
                path, at, word = member.partition("@")
                if at and not Path(member).exists():  # no encoder of the Hub has an @ in its name
                    known = ", ".join(f"@{pooling}" for pooling in get_args(PoolingMode))
                    raise ValueError(
                        f"{name!r}: {path}@{word} should be {path} with one of {known}, or with @prompt=TEXT."
                    )
                refuse_missing_path(member, "a folder with an encoder, or a model of the Hub (USER/NAME)")


@dataclass
class ComparisonArguments:
    """The seed, the name of the data, and where the results are published."""

    seed: Seed = option(
        0,
        "Seed of all that is drawn: splits made here, samples, few-shot draws and the first training. The split of "
        "python_docs is fixed.",
    )
    data_name: str | None = option(
        None, "Name of the data in results and cards. Default: its name on the Hub, or the names of the files."
    )
    push_results: bool = option(
        False,
        "Add the results to the cards of the models that this project trained: in their folders, and on the Hub for "
        "those that are there.",
        common=True,
    )


class EncoderArgument(NamedTuple):
    """An argument of --model_name_or_path, divided: the encoders, and what it states of them."""

    encoders: str  # PATH, NAME=PATH, PATH,PATH ...
    pooling: PoolingMode | None = None
    prompt: str | None = None  # before each document; empty: none


def parse_encoder_argument(name: str) -> EncoderArgument:
    """Divide an argument such as NAME=PATH@mean@prompt=TEXT; what exists under the whole name states nothing."""
    if Path(name).exists():
        return EncoderArgument(name)
    found: Any = _STATED.fullmatch(name)  # as any text does
    encoders, pooling, prompt = found.groups()
    return EncoderArgument(encoders, pooling, prompt)


def members_of(name: str) -> list[str]:
    """Split an argument into encoders: PATH or NAME=PATH; one a pretraining seed, PATH,PATH or NAME=PATH,PATH.

    What exists under the whole name is one encoder, and so is a name without a comma or NAME=. What
    `parse_encoder_argument` finds at the end, a pooling and a prompt, is no part of an encoder.

    Raises:
        ValueError: if a member is empty or named twice, or is no encoder, or NAME has a comma.
    """
    name = parse_encoder_argument(name).encoders
    stated = re.match(r"[^/\\,=]+=", name)
    if Path(name).exists() or ("," not in name and not stated):
        return [name]
    members = name.split(",")
    if re.match(r"[^/\\,=]+,[^/\\=]*=", name) and not any(Path(member).exists() for member in members):
        raise ValueError(f"{name!r}: a comma stands between encoders, so NAME cannot have one.")
    if stated and not all(Path(member).exists() for member in members):
        members = name[stated.end() :].split(",")
    distinct = {Path(member).resolve() if Path(member).exists() else member for member in members}
    if "" in members or len(distinct) < len(members) or "tfidf" in members:
        raise ValueError(
            f"{name!r} should be NAME=PATH, or encoders from several pretraining seeds, PATH,PATH or NAME=PATH,PATH: "
            "each once, none empty, and without tfidf, which has no seeds."
        )
    return members
