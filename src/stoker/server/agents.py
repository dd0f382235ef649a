"""The seam to shims and runners: who fulfils the wishes of jobs and instances, and who watches hosts.

They are made once by `main`, before the engine exists, from a context whose `engine` is set a moment later: they may
use `context.engine` from `start` on, and in performers and loops. `server/hands.py` has the real ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.core.machine import Effect
from stoker.engine.errand import Performer
from stoker.engine.loop import Once
from stoker.engine.placement import Merchant


@dataclass
class Agents:
    """`performers` by effect; `loops` as (name, once, period in seconds), run by the engine with its own."""

    performers: Mapping[type[Effect], Performer] = field(default_factory=dict)
    loops: tuple[tuple[str, Once, float], ...] = ()
    merchant: Merchant | None = None
    """What could be launched."""

    async def start(self) -> None:
        """After the engine has started."""

    async def stop(self) -> None:
        """Before the engine stops: nothing of a host is stopped, only our eyes on it are closed."""
