"""A frozen record with some fields changed, in less than half the time of `dataclasses.replace`.

Every step of every machine makes one, so this is where a busy engine spends its time. It copies slots instead of
calling `__init__`, so it is for dataclasses with slots and without `__post_init__`.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

R = TypeVar("R")

_copiers: dict[type[Any], Callable[[Any, Mapping[str, Any]], Any]] = {}


def evolve(record: R, changes: Mapping[str, Any]) -> R:
    kind = type(record)
    copier = _copiers.get(kind)
    if copier is None:
        copier = _copiers[kind] = _copier(kind)
    changed: R = copier(record, changes)
    return changed


def _copier(kind: type[Any]) -> Callable[[Any, Mapping[str, Any]], Any]:
    names = [field.name for field in fields(kind)]
    if hasattr(kind, "__post_init__") or not all(name in kind.__slots__ for name in names):
        raise TypeError(f"{kind.__name__} is not a plain dataclass with slots")
    read = attrgetter(*names)
    writers = [getattr(kind, name).__set__ for name in names]
    place = {name: number for number, name in enumerate(names)}

    def copy(record: Any, changes: Mapping[str, Any]) -> Any:
        values = list(read(record))
        for name, value in changes.items():
            values[place[name]] = value
        made = object.__new__(kind)
        for write, value in zip(writers, values, strict=True):
            write(made, value)
        return made

    return copy
