"""One server process: everything is wired here, started in order, and stopped in the opposite one."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import structlog

from stoker.core.errors import UserError
from stoker.engine import garbage, hint
from stoker.engine.engine import Engine
from stoker.engine.engine import Settings as EngineSettings
from stoker.engine.loop import Counts
from stoker.engine.rooms import Rooms
from stoker.server import auth, first_start, log_format, run_hub, sockets, sweep
from stoker.server.agents import Agents
from stoker.server.app import create_app
from stoker.server.auth import Doorkeeper
from stoker.server.context import Context
from stoker.server.doors import Doors
from stoker.server.first_start import Keyring
from stoker.server.hands import Hands
from stoker.server.http import Http, bound, url_of
from stoker.server.log_hub import LogHub
from stoker.server.metrics import Metrics
from stoker.server.roster import Rosters
from stoker.server.run_hub import RunHub
from stoker.server.seal import Seal
from stoker.server.settings import Settings
from stoker.server.sockets import Sockets
from stoker.server.sweep import Sweeper
from stoker.store import replica, setting
from stoker.store.cluster import explained, locked
from stoker.store.database import ConnectionLost, Database
from stoker.store.log import LogStore
from stoker.store.migration import migrate
from stoker.store.output import OutputStore
from stoker.store.postgres import Embedded
from stoker.store.tail import Tail

POOL_SIZE: Final = 12
GRAPHS_AT_ONCE: Final = 3
REVIVE_S: Final = 2.0
"""How often the embedded PostgreSQL is asked whether it is there."""

log = structlog.get_logger()

Build = Callable[[Context], Agents]


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    url: str
    context: Context
    http: Http


async def serve(settings: Settings, ready: Callable[[Served], None] = lambda served: None) -> None:
    """Until SIGTERM or SIGINT; a second one does not wait for requests under way."""
    log_format.configure(settings.log_level, settings.log_format)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with running(settings) as served:

        def asked() -> None:
            served.http.force_exit = stop.is_set()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked)
        garbage.tune()
        log.info("serving", at=served.url, home=str(settings.home), version=served.context.version)
        ready(served)
        await stop.wait()
        log.info("stopping")


@asynccontextmanager
async def running(settings: Settings, build: Build = Hands) -> AsyncIterator[Served]:
    """A whole server inside this event loop. What `build` makes are its hands."""
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(bound(settings.host, settings.port))
        database, embedded = await _database(settings, stack)
        await migrate(database)
        context = await _context(settings, database)
        agents = build(context)
        engine = context.engine = Engine(
            database,
            EngineSettings(name=settings.replica, lease_s=settings.lease_s),
            agents.performers,
            merchant=agents.merchant,
        )
        _add_loops(context, agents, embedded)
        engine.listeners.append(context.runs.heard)
        await engine.start()
        stack.push_async_callback(engine.stop)
        await _admit(context, embedded is not None, url_of(listener))
        await agents.start()
        stack.push_async_callback(agents.stop)
        http = Http(create_app(context))
        stack.push_async_callback(_end, context, http, await http.begin(listener))
        yield Served(url_of(listener), context, http)


async def _end(context: Context, http: Http, task: "asyncio.Task[None]") -> None:
    """Requests first: while they end, the engine still commits what they ask for."""
    context.stop()
    http.stop()
    await task


async def _database(settings: Settings, stack: AsyncExitStack) -> tuple[Database, Embedded | None]:
    embedded = None
    if settings.database_url is None:
        embedded = await Embedded.start(settings.home)
        stack.push_async_callback(embedded.stop)
    else:
        with explained(settings.home):
            settings.home.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
            stack.callback(os.close, locked(settings.home))
    url = embedded.url if embedded else settings.database_url
    assert url is not None
    database = await Database.connect(url, pool_size=POOL_SIZE)
    stack.push_async_callback(database.close)
    return database, embedded


async def _context(settings: Settings, database: Database) -> Context:
    with explained(settings.home):
        settings.log_root.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with database.transaction() as tx:
        secret = await setting.agreed(tx, setting.SECRET, secrets.token_hex(32))
    return Context(
        settings=settings,
        database=database,
        logs=LogStore(settings.log_root),
        secret=bytes.fromhex(secret),
        version=metadata.version("stoker"),
        runs=RunHub(database),
        tail=Tail(database),
        rooms=Rooms(lambda: database.generation),
        log_hub=LogHub(),
        doorkeeper=Doorkeeper(database),
        metrics=Metrics(),
        outputs=OutputStore(settings.log_root / "tasks"),
        graphs=asyncio.Semaphore(GRAPHS_AT_ONCE),
        sockets=Sockets(database),
        rosters=Rosters(database),
        doors=Doors(database, Seal(settings.seal_file)),
    )


def _add_loops(context: Context, agents: Agents, embedded: Embedded | None) -> None:
    engine = context.engine
    engine.add_loop(hint.RUNS, context.runs.once, run_hub.PERIOD_S)
    engine.add_loop(hint.CANCELS, context.sockets.once, sockets.PERIOD_S)
    engine.swarm.cancelled = context.sockets.cancelled
    context.sockets.tell_others = lambda: engine.tell(hint.CANCELS)
    engine.add_loop("tokens", context.doorkeeper.flush_once, auth.FLUSH_S)
    engine.add_loop(sweep.NAME, Sweeper(context.database, engine, context.logs).once, sweep.PERIOD_S)
    if embedded is not None:
        engine.add_loop("postgres", _Reviver(context.database, embedded).once, REVIVE_S)
    for name, once, period_s in agents.loops:
        engine.add_loop(name, once, period_s)


async def _admit(context: Context, owned: bool, url: str) -> None:
    """Whoever owns the home can use the server: HOME/config.yml has its address and a token."""
    await _share_logs(context)
    keyring, database = Keyring(context.settings.config_file), context.database
    now, new_id = context.engine.clock.now(), context.engine.new_id
    with explained(context.settings.home):
        if keyring.foreign:
            log.warning("config.yml names another server and is left as it is", home=str(context.settings.home))
        elif owned:
            keyring.write(url)
            if await first_start.found(database, keyring.secret, now, new_id):
                return
            if not await first_start.opens(database, keyring.secret, now):
                keyring.replace()
                keyring.write(url)
                await first_start.renew(database, keyring.secret, now, new_id)
        elif not context.settings.config_file.exists() and await first_start.found(
            database, keyring.secret, now, new_id
        ):
            keyring.write(url)


async def _share_logs(context: Context) -> None:
    """Replicas that keep their logs in different places would each have half of them."""
    with explained(context.settings.home):
        own = _store_id(context.settings.log_root)
    async with context.database.transaction() as tx:
        agreed = await setting.agreed(tx, setting.LOG_STORE, own)
        if agreed == own:
            return
        if await replica.others(tx, context.engine.replica.epoch):
            raise UserError(
                f"The other replicas of this server keep their logs elsewhere than in {context.settings.log_root}.",
                hint="Let STOKER_LOGS name a directory that all of them share.",
                code="logs_not_shared",
            )
        await setting.put(tx, setting.LOG_STORE, own)


def _store_id(root: Path) -> str:
    path = root / "id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        id = secrets.token_hex(16)
        path.write_text(id + "\n")
        return id


class _Reviver:
    """Starts the embedded PostgreSQL again when it has died."""

    def __init__(self, database: Database, embedded: Embedded) -> None:
        self._database, self._embedded = database, embedded

    async def once(self) -> Counts:
        try:
            async with self._database.connection() as connection:
                await connection.fetchval("SELECT 1")
        except ConnectionLost:
            log.warning("postgres is away and is started again")
            await self._embedded.revive()
            return Counts(1)
        return Counts()
