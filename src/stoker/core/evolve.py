"""Frozen records, made and changed several times as fast as `__init__` and `dataclasses.replace` do it.

Every step of every machine makes one, and every row that is read, so this is where a busy engine spends its time.
Both fill the instance's dictionary, so they are for dataclasses without slots and without `__post_init__`.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

R = TypeVar("R")


def evolve(record: R, changes: Mapping[str, Any]) -> R:
    changed = object.__new__(type(record))
    fields = changed.__dict__
    fields.update(record.__dict__)
    known = len(fields)
    fields.update(changes)
    if len(fields) != known:
        raise TypeError(f"{type(record).__name__} has no field {set(fields) - set(record.__dict__)}")
    return changed


def made(kind: type[R], fields: Mapping[str, Any]) -> R:
    """All of its fields, also those with a default."""
    record = object.__new__(kind)
    record.__dict__.update(fields)
    return record
