"""What is sent to the server or to an agent is taken as it is written: a bool is no number, and a number no text."""

import importlib
import json
import pkgutil
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import pytest
from pydantic import BaseModel, BeforeValidator, ValidationError

import stoker.wire
from stoker.wire.model import Answer, Model, Order
from stoker.wire.runner import Pull
from stoker.wire.shim import Leave, LogQuery, TaskOrder, Terminate

PLAIN = {int: (True, False, "1", 1.0), float: (True, False, "1"), bool: (1, 0, "true", "yes"), str: (1, True, 1.5)}
"""What is none of them, though pydantic takes some of it unless it is told otherwise."""


def sent() -> list[type[BaseModel]]:
    """Every model of something that is sent to us, in all of `wire`."""
    for module in pkgutil.iter_modules(stoker.wire.__path__, "stoker.wire."):
        importlib.import_module(module.name)
    return [model for model in below(Model) if not issubclass(model, Answer)]


def below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in model.__subclasses__():
        yield one
        yield from below(one)


def plain_types(annotation: Any) -> set[type]:
    """The numbers, flags and texts that a field holds by itself or in a list."""
    if any(isinstance(one, BeforeValidator) for one in getattr(annotation, "__metadata__", ())):
        return set()
    if get_origin(annotation) in (Union, types.UnionType, Annotated, tuple):
        return set().union(*map(plain_types, get_args(annotation)))
    return {annotation} if annotation in PLAIN else set()


def fields() -> list[tuple[type[BaseModel], str]]:
    """Without those that have a reader of their own, such as lengths of time: it is tested beside that reader."""
    return [
        (model, name)
        for model in sent()
        for name, field in model.model_fields.items()
        if plain_types(field.annotation) and not any(isinstance(one, BeforeValidator) for one in field.metadata)
    ]


def test_there_are_models_to_look_at() -> None:
    assert {TaskOrder, Terminate, Leave} <= set(sent())
    assert len(fields()) > 40


@pytest.mark.parametrize(("model", "name"), fields(), ids=lambda one: getattr(one, "__name__", one))
def test_a_field_takes_nothing_of_another_kind(model: type[BaseModel], name: str) -> None:
    """By JSON, as agents read it, and by values that are already read, as the server does."""
    kinds = plain_types(model.model_fields[name].annotation)
    wrong = [value for kind in kinds for value in PLAIN[kind] if type(value) not in kinds]
    if float in kinds:
        wrong = [value for value in wrong if type(value) is not int]
    for value in (one for plain in wrong for one in (plain, [plain])):
        for by_json in (True, False):
            with pytest.raises(ValidationError) as refused:
                if by_json:
                    model.model_validate_json(json.dumps({name: value}))
                else:
                    model.model_validate({name: value})
            assert name in {error["loc"][0] for error in refused.value.errors()}, (value, refused.value)


def test_an_order_to_an_agent_says_what_was_wrong() -> None:
    with pytest.raises(ValidationError, match="valid integer"):
        Terminate.model_validate_json('{"fence": false}')
    with pytest.raises(ValidationError, match="valid number"):
        Terminate.model_validate_json('{"fence": 1, "grace_s": true}')
    assert issubclass(Terminate, Order)


def test_a_query_is_text_and_is_read_as_what_it_stands_for() -> None:
    assert Pull.model_validate_strings({"offset": "7", "wait_s": "0.5"}) == Pull(offset=7, wait_s=0.5)
    assert LogQuery.model_validate_strings({"own": "true"}).own is True
    with pytest.raises(ValidationError):
        Pull.model_validate_strings({"offset": "true"})


def test_an_order_is_read_back_from_what_is_written_of_it() -> None:
    order = TaskOrder(
        id=UUID(int=1), fence=3, name="a", project_id=UUID(int=2), token="x" * 16, cpu=2, gpu_indices=(0, 1)
    )
    assert TaskOrder.model_validate_json(order.model_dump_json()) == order
