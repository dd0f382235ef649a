"""Who was away judges nobody: replicas after an outage of their database."""

from stoker.engine.replica import Replica
from stoker.store.database import Database
from tests.conftest import Databases
from tests.engine.conftest import ask

PERIOD_S, DEAD_AFTER_S = 2.0, 8.0


class Hands:
    """A clock that is set."""

    at = 1000.0

    def now(self) -> float:
        return self.at


async def joined(db: Database, clock: Hands, name: str) -> Replica:
    replica = Replica(db, clock, name, lambda _: None, lambda: None, period_s=PERIOD_S, dead_after_s=DEAD_AFTER_S)
    await replica.register()
    await replica.once()
    return replica


async def beat(clock: Hands, seconds: float, *replicas: Replica) -> None:
    """They live on for so long, a beat every period."""
    for _ in range(int(seconds / PERIOD_S)):
        clock.at += PERIOD_S
        for replica in replicas:
            await replica.once()


async def living(db: Database) -> set[str]:
    return set(await ask(db, "SELECT array_agg(name) FROM replica"))


async def test_the_first_to_beat_again_after_an_outage_buries_nobody_who_lives(database: Databases) -> None:
    """The database was away for a minute, and nobody could renew anything: that says nothing about the others."""
    async with database() as db:
        clock = Hands()
        a, b, c = [await joined(db, clock, name) for name in "abc"]
        await beat(clock, 20, a, b, c)
        epochs = [one.epoch for one in (a, b, c)]
        clock.at += 60
        await a.once()
        clock.at += 1.9
        await b.once()
        # The third comes back last, within the time that everybody has.
        await beat(clock, DEAD_AFTER_S - 2.5, a, b)
        await c.once()
        await beat(clock, 20, a, b, c)
        assert [one.epoch for one in (a, b, c)] == epochs


async def test_who_stays_silent_after_an_outage_is_buried_a_full_period_later(database: Databases) -> None:
    async with database() as db:
        clock = Hands()
        a, b = [await joined(db, clock, name) for name in "ab"]
        await beat(clock, 20, a, b)
        clock.at += 60
        await a.once()
        await beat(clock, DEAD_AFTER_S - PERIOD_S, a)
        assert await living(db) == {"a", "b"}
        await beat(clock, PERIOD_S, a)
        assert await living(db) == {"a"}


async def test_who_has_just_come_buries_nobody(database: Databases) -> None:
    """A new process finds a database that has come back a moment ago, before those who were there could say a word."""
    async with database() as db:
        clock = Hands()
        await joined(db, clock, "a")
        clock.at += 60
        b = await joined(db, clock, "b")
        await beat(clock, DEAD_AFTER_S - PERIOD_S, b)
        assert await living(db) == {"a", "b"}
        await beat(clock, PERIOD_S, b)
        assert await living(db) == {"b"}


async def test_one_missed_beat_gives_nobody_a_longer_life(database: Databases) -> None:
    """A connection that broke once is no outage: the dead are buried in time."""
    async with database() as db:
        clock = Hands()
        a, _ = [await joined(db, clock, name) for name in "ab"]
        await beat(clock, DEAD_AFTER_S - PERIOD_S, a)
        clock.at += PERIOD_S - 0.1
        assert await living(db) == {"a", "b"}
        await beat(clock, PERIOD_S, a)
        assert await living(db) == {"a"}
