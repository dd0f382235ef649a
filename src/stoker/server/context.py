"""What one server process is made of: handed to routes, performers and loops."""

import asyncio
from dataclasses import dataclass, field

from stoker.backends.dummy.steering import Steering
from stoker.engine.engine import Engine
from stoker.engine.pulls import Pulls
from stoker.engine.rooms import Rooms
from stoker.server.auth import Doorkeeper
from stoker.server.doors import Doors
from stoker.server.log_hub import LogHub
from stoker.server.metrics import Metrics
from stoker.server.roster import Rosters
from stoker.server.run_hub import RunHub
from stoker.server.settings import Settings
from stoker.server.sockets import Sockets
from stoker.store.database import Database
from stoker.store.log import LogStore
from stoker.store.output import OutputStore
from stoker.store.tail import Tail


@dataclass(slots=True)
class Context:
    """`engine` is set once it is made: those who make its performers get the context first."""

    settings: Settings
    database: Database
    logs: LogStore
    secret: bytes = field(repr=False)
    """Of the cluster. The token of a runner is HMAC-SHA256 of its job's id under it."""
    version: str
    runs: RunHub
    tail: Tail
    rooms: Rooms
    """The instances as those who ask why something waits see them."""
    log_hub: LogHub
    doorkeeper: Doorkeeper
    metrics: Metrics
    outputs: OutputStore
    """What swarm tasks print."""
    graphs: asyncio.Semaphore
    """Of swarm tasks, that are stored while they come: each keeps a connection of the database."""
    sockets: Sockets
    rosters: Rosters
    doors: Doors
    """How hosts are logged in to by SSH."""
    pulls: Pulls = field(default_factory=Pulls)
    """Of images, on the hosts that this replica watches."""
    engine: Engine = field(init=False)
    dummy: Steering | None = None
    """The dummy backend, where there is one."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0
    """Logs and events that are being sent."""

    def stop(self) -> None:
        """Requests that wait come to an end."""
        self.stopping.set()
        self.runs.close()
        self.log_hub.notify_all()
