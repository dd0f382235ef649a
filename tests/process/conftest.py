"""Whole stands that several tests share, and what those need that want a disk of their own."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.store.postgres import Embedded
from tests.conftest import administer, url_of
from tests.machine import small_disk
from tests.process.crowd import Yard
from tests.process.house import House
from tests.process.stand import Stand, standing
from tests.process.swarm import REAL, hand
from tests.worker.stage import Hand


class Shared:
    """One stand for one test after the other; one that a test failed with is not given to the next."""

    def __init__(self, home: Callable[[], Path]) -> None:
        self._home = home
        self._stand: Stand | None = None

    def take(self) -> Stand:
        if self._stand is None:
            self._stand = Stand(self._home())
            self._stand.start()
        return self._stand

    def clear(self) -> None:
        if self._stand is not None:
            self._stand.clear()
            shutil.rmtree(self._stand.home, ignore_errors=True)
            self._stand = None


@pytest.fixture(scope="session")
def new_home(shared_directory: Path) -> Callable[[], Path]:
    return lambda: shared_directory / f"stand-{uuid4().hex[:6]}"


@pytest.fixture(scope="session")
def shared_stand(new_home: Callable[[], Path]) -> Iterator[Shared]:
    shared = Shared(new_home)
    yield shared
    shared.clear()


@pytest.fixture
def stand(shared_stand: Shared, request: pytest.FixtureRequest) -> Iterator[Stand]:
    """A whole Stoker that runs. A test may kill what it likes, if it waits until all is well again."""
    failed = request.session.testsfailed
    yield shared_stand.take()
    if request.session.testsfailed > failed:
        shared_stand.clear()


@pytest.fixture
def own_stand(new_home: Callable[[], Path]) -> Iterator[Callable[..., Stand]]:
    """Makes stands that only this test uses; they are not started."""
    made: list[Stand] = []

    def make(*, local: bool = True, **environ: str) -> Stand:
        made.append(Stand(new_home(), local=local, **environ))
        return made[-1]

    yield make
    for one in reversed(made):
        one.clear()
        shutil.rmtree(one.home, ignore_errors=True)


@pytest.fixture
def yard(shared_directory: Path) -> Iterator[Yard]:
    made = Yard(shared_directory / f"yard-{uuid4().hex[:6]}")
    yield made
    shutil.rmtree(made.directory)


Disk = Callable[[Path, int], Path]


@pytest.fixture
def disk() -> Iterator[Disk]:
    """Mounts a disk of so many megabytes at a directory, which is made where it is missing."""
    with ExitStack() as mounted:
        yield lambda place, megabytes: mounted.enter_context(small_disk(place, megabytes))


@pytest.fixture
def house(postgres: Embedded, template: str, new_home: Callable[[], Path]) -> Iterator[House]:
    """A server that is not there yet, and its machines; whatever was done to them, nothing is left."""
    home, name = new_home(), f"house_{uuid4().hex[:8]}"
    home.mkdir(mode=0o711)
    asyncio.run(administer(postgres, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY"))
    made = House(home, url_of(postgres, name))
    yield made
    for machine in made.machines:
        machine.clear()
    shutil.rmtree(home, ignore_errors=True)
    asyncio.run(administer(postgres, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def swarm(new_home: Callable[[], Path]) -> Iterator[Stand]:
    """A server whose tasks of the group `real` are taken by `swarm_hand`."""
    home = new_home()
    with standing(home, local=False) as stand:
        yield stand
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def swarm_hand(swarm: Stand) -> Iterator[Hand]:
    worker = hand(swarm, swarm.home / "hand", "--cpus", "8", "--group", REAL)
    yield worker
    worker.kill()
