"""What tests of real hosts share, started once a worker and ended with it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from stoker.bundle.place import find_or_build
from tests.hosts import engine as engines
from tests.hosts.box import Yard, yard
from tests.hosts.engine import Engine, Registry
from tests.hosts.ground import shire, stand
from tests.process.conftest import house, new_home
from tests.process.house import House

__all__ = ["house", "new_home", "shire", "stand"]

Yards = Callable[..., AbstractAsyncContextManager[Yard]]


@pytest.fixture(scope="session")
def bundles(shared_directory: Path) -> Path:
    """A home with a bundle of what is installed."""
    home = shared_directory / "bundles"
    find_or_build(home)
    return home


@pytest.fixture(scope="session")
def engine(shared_directory: Path) -> Iterator[Engine]:
    with engines.engine(shared_directory / "engine") as made:
        engines.make_images(made, shared_directory / "trees")
        yield made


@pytest.fixture(scope="session")
def registry(shared_directory: Path) -> Iterator[Registry]:
    with engines.registry(shared_directory / "registry") as made:
        yield made


@pytest.fixture
def yards(shared_directory: Path, engine: Engine, bundles: Path) -> Yards:
    return partial(yard, shared_directory, engine, bundles)


@pytest.fixture
def docker_house(house: House, bundles: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> House:
    """A server whose machines have the engine, unless its test says otherwise."""

    def prepare(home: Path) -> None:
        home.mkdir(mode=0o711)
        (home / "bundle").symlink_to(bundles / "bundle")

    house.prepare = prepare
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    return house
