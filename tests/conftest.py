"""What every test may use: `async def` tests, a PostgreSQL, and fresh databases in it.

A test that is a coroutine function runs in an event loop of its own. A database lives inside that loop, so the fixture
gives a function and the test opens what it needs::

    async def test_a_thing(database: Databases) -> None:
        async with database() as db, db.transaction() as tx:
            await tx.execute("…")

Each `database()` is new, migrated, empty, and dropped at the end of its block. Under hypothesis's `@given` write a
plain test and call `asyncio.run` in it.
"""

import asyncio
import fcntl
import inspect
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import structlog

from stoker.bundle.place import Bundle, find_or_build
from stoker.store.cluster import Cluster
from stoker.store.database import Database
from stoker.store.installation import account
from stoker.store.migration import migrate
from stoker.store.postgres import Embedded

# No package brings a GPU: `make gpu` asks for these by name, and fails where there is none.
collect_ignore = [] if os.environ.get("STOKER_GPU") else ["gpu"]

# Where rich is installed structlog draws a traceback with every variable in it, which takes seconds.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S"),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)
USUAL = structlog.get_config()

# A shell lets what it starts in the background ignore Ctrl-C, and so would every program that a test talks to.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

Databases = Callable[[], AbstractAsyncContextManager[Database]]


@pytest.fixture(autouse=True)
def logs_as_usual(request: pytest.FixtureRequest) -> None:
    """Some tests set up logging for a process of its own, or are quiet about simulated faults: the next one is not."""
    if not request.node.nodeid.startswith("tests/sim/"):
        structlog.configure(**USUAL)


TEST_S = 180.0
PREFIX = "stoker-tests-"
ENOUGH_MEMORY_BYTES = 4 * 1024**3
FAST_AND_FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs coroutine tests; a test that hangs fails after a while instead of holding up the rest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_S))
    return True


@pytest.fixture(scope="session")
def shared_directory() -> Iterator[Path]:
    """A short temporary directory which other users may pass through; pytest's own is closed to them."""
    with held_directory(Path("/tmp")) as directory:
        yield directory


@pytest.fixture(scope="session")
def bundle(shared_directory: Path) -> Bundle:
    """Of the agents as they are now, unpacked where other users may read it."""
    return find_or_build(shared_directory / "home-of-bundle")


@contextmanager
def held_directory(base: Path) -> Iterator[Path]:
    for left_behind in base.glob(f"{PREFIX}*"):
        sweep(left_behind)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        directory.chmod(0o711)
        mark = os.open(directory, os.O_RDONLY)
        fcntl.flock(mark, fcntl.LOCK_EX)
        if directory.exists():
            break
        # Another session took it for left behind, in the moment before it was locked.
        os.close(mark)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
    os.close(mark)


def sweep(directory: Path) -> None:
    """Ends what a killed test session left running: an embedded PostgreSQL outlives its server by design.

    A living session holds a lock on its directory; a dead one cannot.
    """
    try:
        mark = os.open(directory, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for place in (*directory.glob("*/postgres"), *directory.glob("*/*/postgres")):
            Cluster(place.parent, account(os.geteuid())).clear(patience_s=0.0)
        shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(mark)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Embedded]:
    """One PostgreSQL a session (under xdist: a worker), quick because it may forget all when the machine dies.

    In memory where there is enough: a test's database is hundreds of files, and some file systems make the next ones
    the more slowly the more were deleted lately.
    """
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ENOUGH_MEMORY_BYTES
    with held_directory(memory if roomy else Path("/tmp")) as directory:
        server = asyncio.run(Embedded.start(directory / "shared", settings=FAST_AND_FORGETFUL))
        yield server
        asyncio.run(server.stop())


@pytest.fixture(scope="session")
def template(postgres: Embedded) -> str:
    """The name of a migrated database that others are copied from."""

    async def make() -> str:
        await administer(postgres, "CREATE DATABASE pattern")
        async with await Database.connect(url_of(postgres, "pattern"), pool_size=1) as database:
            await migrate(database)
        return "pattern"

    return asyncio.run(make())


@pytest.fixture
def database(postgres: Embedded, template: str) -> Databases:
    """Opens new databases: `async with database() as db`."""
    return lambda: fresh(postgres, template)


@pytest.fixture
def empty_database(postgres: Embedded) -> Databases:
    """Like `database`, with no migration applied."""
    return lambda: fresh(postgres, "template0")


_numbers = itertools.count(1)


@asynccontextmanager
async def fresh(server: Embedded, template: str, *, pool_size: int = 8) -> AsyncIterator[Database]:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    await administer(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    try:
        async with await Database.connect(url_of(server, name), pool_size=pool_size) as database:
            yield database
    finally:
        await administer(server, f"DROP DATABASE {name} WITH (FORCE)")


def url_of(server: Embedded, name: str) -> str:
    return urlunsplit(urlsplit(server.url)._replace(path=f"/{name}"))


async def administer(server: Embedded, statement: str) -> None:
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
