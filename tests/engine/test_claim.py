"""A run, what it was asked to be and the key it was asked under become durable together, or none of them."""

import asyncio
from uuid import uuid4

import pytest

from stoker.core.errors import Conflict
from stoker.engine.change import Change, RunBirth
from stoker.engine.engine import Engine
from stoker.store import idempotency, run_spec
from stoker.store.idempotency import Claim, key_of
from stoker.store.run_spec import RunSpec
from tests.conftest import Databases
from tests.engine.conftest import ask, engine_with
from tests.engine.test_engine import PROJECT, run_of


def birth(engine: Engine, name: str) -> RunBirth:
    born = run_of(engine, name)
    return RunBirth(born.run, born.request, RunSpec(born.run.id, PROJECT, name, "ada", "task", '{"type": "task"}'))


def claim(key: str, digest: bytes = b"d") -> Claim:
    return Claim(key_of("main", key), digest, '{"runs": []}')


async def test_they_are_there_together(database: Databases) -> None:
    async with database() as db, engine_with(db, {}) as engine:
        born = birth(engine, "a")
        await ask(db, "INSERT INTO project VALUES ($1, 'main', 0)", PROJECT)
        await engine.commit(Change(runs=(born,), claim=claim("k")))
        async with db.connection() as tx:
            order = await run_spec.get(tx, born.run.id)
            assert (order.project, order.spec) == ("main", born.spec)
            assert await idempotency.find(tx, key_of("main", "k")) == claim("k")
            assert await idempotency.find(tx, key_of("main", "j")) is None


async def test_another_request_under_the_same_key_makes_nothing(database: Databases) -> None:
    async with database() as db, engine_with(db, {}) as engine:
        await engine.commit(Change(runs=(birth(engine, "a"),), claim=claim("k")))
        with pytest.raises(Conflict) as refused:
            await engine.commit(Change(runs=(birth(engine, "b"),), claim=claim("k")))
        assert refused.value.code == "key_taken"
        assert await ask(db, "SELECT array_agg(name) FROM run") == ["a"]
        assert await ask(db, "SELECT count(*) FROM run_spec") == 1


async def test_of_many_at_the_same_moment_one_wins_and_bystanders_do_not_notice(database: Databases) -> None:
    async with database() as db, engine_with(db, {}) as engine:
        same = [Change(runs=(birth(engine, f"s{n}"),), claim=claim("k")) for n in range(10)]
        others = [Change(runs=(birth(engine, f"o{n}"),), claim=claim(f"k{n}")) for n in range(10)]
        answers = await asyncio.gather(*map(engine.commit, (*same, *others)), return_exceptions=True)
        assert sum(isinstance(answer, Conflict) for answer in answers[:10]) == 9
        assert not any(isinstance(answer, Exception) for answer in answers[10:])
        assert await ask(db, "SELECT count(*) FROM run") == 11


async def test_the_same_change_said_again_is_no_conflict(database: Databases) -> None:
    """The connection broke in the middle of a COMMIT that did happen: the batch is said again."""
    async with database() as db, engine_with(db, {}) as engine:
        change = Change(runs=(birth(engine, "a"),), claim=claim("k"))
        await engine.commit(change)
        await engine.commit(change)
        assert await ask(db, "SELECT count(*) FROM run_spec") == 1


async def test_keys_are_forgotten_after_a_while(database: Databases) -> None:
    async with database() as db, db.transaction() as tx:
        for number in range(5):
            await idempotency.add(tx, Claim(key_of(uuid4()), b"", "{}"), float(number))
        assert await idempotency.forget(tx, 3.0, 2) == 2
        assert await idempotency.forget(tx, 3.0, 2) == 1
        assert await idempotency.forget(tx, 3.0, 2) == 0
