"""An option as the field of a dataclass: its help, and the numbers that it takes.

    @dataclass
    class Options:
        weight: Share = option(0.5, "Weight of the mean.")

Only the standard library is imported, since models have options too.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

COMMON = "common"  # in the metadata of a field: the short page of --help shows it
# In the metadata of a field: what its value decides. Each kind has to be alike where those before it have to be, and
# in fewer places.
#     training   the weights: alike in all sessions of a run that resumes
#     release    what a run ends with: another value may be given when it resumes
#     session    speed, logs, checkpoints: alike in all processes of a session
#     process    nothing but a place, or the machine's own: what is read there is compared, not its name
DECIDES = "decides"


@dataclass(frozen=True)
class Bound:
    """The numbers that an option takes: part of the type of a field, or the type by which a parser reads a word.

    Infinity, NaN and what 64 bits do not hold are refused everywhere.

    Attributes:
        above: whether `least` itself is refused.
        special: a number outside of the limits that stands for something.
        kind: int or float.
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    special: int | None = None
    kind: type[int | float] = int

    def holds(self, value: float) -> bool:
        """Whether the option takes this number."""
        is_enough = value > self.least if self.above else value >= self.least
        can_be = abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
        return value == self.special or (can_be and is_enough and value <= self.most)

    def __str__(self) -> str:
        if self.most < math.inf:
            return f"a number from {self.least:g} to {self.most:.10g}"
        limit = f" {'above' if self.above else 'of at least'} {self.least:g}" if self.least > -math.inf else ""
        return f"a number{limit}" + (f", or {self.special}" if self.special is not None else "")

    def __call__(self, word: str) -> float:
        """Read a number of a command line."""
        try:
            value = self.kind(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"invalid {self.kind.__name__} value: {word!r}") from None
        if not self.holds(value):
            raise argparse.ArgumentTypeError(f"give {self}, not {word}")
        return value


Count = Annotated[int, Bound(1)]
Whole = Annotated[int, Bound(0)]
Length = Annotated[int, Bound(3)]  # in tokens: one needs room beside the special ones
Seed = Annotated[int, Bound(0, 2**31 - 1)]  # half of what numpy takes: further runs count on from it
Weight = Annotated[float, Bound(0)]
Positive = Annotated[float, Bound(0, above=True)]
Share = Annotated[float, Bound(0, 1)]


def option(
    default: Any,
    help: str | Callable[[], str],
    common: bool = False,
    decides: Literal["training", "release", "session", "process"] = "training",
    **metadata: Any,
) -> Any:
    """Declare an option of a script: the field of a dataclass, with its help text.

    Args:
        default: a list becomes a new list of each set of options.
        help: a function where it lists the rows of a table, to which plug-ins add.
        common: whether the short page of --help shows it.
        decides: of `DECIDES`, for the options of a training.
        metadata: `choices`, for those that a type does not say.
    """
    metadata |= {"help": help, COMMON: common, DECIDES: decides}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def check_bounds(options: Any) -> None:
    """Check a dataclass of options that a program has made; the parser checks those of a command line.

    Raises:
        ValueError: naming the first option out of bounds.
    """
    bounds = bounds_of(type(options))
    for name, value in vars(options).items():
        for number in value if isinstance(value, list) else [value]:
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if is_number and not bounds.get(name, Bound()).holds(number):
                raise ValueError(f"--{name} {number}: give {bounds.get(name, Bound())}.")


def bounds_of(dtype: Any) -> dict[str, Bound]:
    """Return the bounds that the fields of a dataclass have in their types, and those that it states of others."""

    def bound_in(kind: Any) -> Bound | None:
        return kind if isinstance(kind, Bound) else next(filter(None, map(bound_in, get_args(kind))), None)

    own = {name: bound_in(kind) for name, kind in get_type_hints(dtype, include_extras=True).items()}
    return getattr(dtype, "inherited_bounds", {}) | {name: bound for name, bound in own.items() if bound is not None}


def options_that_decide(options: Any, *kinds: str) -> dict[str, Any]:
    """Return the options of a dataclass that decide one of these (`DECIDES`), with their values.

    Those that it inherits from elsewhere are in its `inherited_decides`, by kind, or decide the training.
    """
    elsewhere = {name: kind for kind, names in getattr(options, "inherited_decides", {}).items() for name in names}
    return {
        each.name: getattr(options, each.name)
        for each in fields(options)
        if each.init and each.metadata.get(DECIDES, elsewhere.get(each.name, "training")) in kinds
    }
