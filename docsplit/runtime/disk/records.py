"""Make records of what a JSON file holds: a value of another type is an error that names it."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")

SHORT = 60  # letters of a value in an error
EXPECTED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


def record_of(kind: type[Record], values: object, where: str) -> Record:
    """Make a dataclass of a JSON object; names that it does not have are left out.

    Args:
        where: the file, for errors.

    Raises:
        ValueError: naming file and key, for a value that is missing or of another type.
    """
    content = checked(values, dict, where)
    hints, given = get_type_hints(kind), {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in content:
            given[field.name] = checked(content[field.name], hints[field.name], f"{where}: {field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where} has no {field.name}.")
    return kind(**given)


def checked(value: Any, kind: Any, where: str) -> Any:
    """Return a JSON value if it is of this type; an object becomes the dataclass that `kind` is.

    Args:
        where: the file and the key, for errors.

    Raises:
        ValueError: naming them, if it is of another type.
    """
    origin, args = get_origin(kind) or kind, get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return value
    if origin in (Union, types.UnionType):
        for choice in args:
            if _fits(value, choice):
                return checked(value, choice, where)
        raise _wrong(value, kind, where)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{where} is {_shown(value)}, expected one of {args}.")
        return value
    if not _fits(value, kind):
        raise _wrong(value, kind, where)
    if is_dataclass(kind) and isinstance(kind, type) and not isinstance(value, kind):
        return record_of(kind, value, where)
    if isinstance(value, list) and args:
        return [checked(item, args[0], f"{where}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, dict) and len(args) == 2:
        return {name: checked(item, args[1], f"{where}: {name}") for name, item in value.items()}
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of this type at its outside."""
    origin = get_origin(kind) or kind
    if origin is Any:
        return True
    if origin is Literal:
        return value in get_args(kind)
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin in (int, bool, str, type(None)):
        return type(value) is origin
    if is_dataclass(origin):
        return isinstance(value, (dict, origin))  # type: ignore[arg-type]
    if issubclass(origin, Mapping):
        return isinstance(value, dict)
    return isinstance(value, list | tuple) if issubclass(origin, Sequence) else isinstance(value, origin)


def _wrong(value: Any, kind: Any, where: str) -> ValueError:
    origin, args = get_origin(kind) or kind, get_args(kind)
    kinds = args if origin in (Union, types.UnionType) else (kind,)
    names = []
    for one in kinds:
        outside = get_origin(one) or one
        is_list = isinstance(outside, type) and issubclass(outside, Sequence) and outside is not str
        names.append(EXPECTED.get(list if is_list else outside, "an object"))
    return ValueError(f"{where} is {_shown(value)}, expected {' or '.join(dict.fromkeys(names))}.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]} ..."
