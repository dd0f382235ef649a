"""The contract between the engine and a provider of machines.

**Names.** Every machine carries a tag at its provider: the id of our instance, which is made before the provider hears
of it. A *handle* is what the provider calls the machine; it may be lost with the answer that said it, the tag never.
Everything here therefore takes the id too, and a backend that is given no handle looks for the tag.

**Order of calls.** `offers` at any time. `launch` first, once our row is on disk; then `look` as often as anybody
likes; then `stop`, which may be left out; then `destroy`. `find` at any time. A machine may be destroyed that was never
seen, and looked at when it is long gone.

**At once.** Any call may run beside any other, also two about the same machine, also from two replicas. A `destroy`
beside a `launch` of the same id may come first and find nothing; what the launch leaves is then found by its tag and
destroyed.

**Twice.** Every call may be repeated. `launch` is keyed by the id: asked twice it makes one machine and gives the same
handle. `stop` and `destroy` of what is gone succeed.

**Errors.** `Refused`: the provider said no (no capacity, denied, no such offer), and asking again would be told the
same; for `launch` only. `Unavailable`: nobody knows; the caller asks again. Both may be lies: **a launch may have
created something although it failed**, and may have created nothing although it succeeded. So after either the machine
is destroyed by its tag, and what the provider accepted is looked at.

**What the calls mean.**

- `offers(want)`: kinds of machines that could be had, with their price and how many are left where the provider says
  so. It may ask the provider: a loop calls it, and the placer reads what the loop keeps.
- `launch(order)`: returns when the provider has accepted, not when the machine is up.
- `look(handles)`: what the provider says of each; whom it does not know is gone. *Coming*: accepted, not there yet.
  *Up*: with the way to its shim. `taken_in_s`: the provider will take it back then. *Gone*: it does not exist and costs
  nothing. Never say *gone* because of an error: a job is run elsewhere by this word.
- `stop(handle, grace_s)`: ask the machine to end by itself within the grace. A courtesy: it returns at once, and
  nothing is known after it.
- `destroy(handle)`: by force. Returns when the provider confirms that nothing with this tag exists, and raises
  `Unavailable` while something does.
- `find(tag)`: machines that carry this tag, and without one all that carry any tag of ours: those of other
  installations at the same provider are not among them. A machine is found as soon as it may cost something.
- `changed(tell)`: a backend that hears of changes by itself calls `tell` after each. One that cannot never does; the
  period of the loops is for those, and for news that was lost.
- `close()`: the process ends; no machine does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from stoker.core.errors import StokerError
from stoker.core.ids import InstanceId, ProjectId
from stoker.core.offer import Offer
from stoker.core.resources import Capacity, Request
from stoker.core.sight import Sight


class Refused(StokerError):
    """The provider said no. It may have created something all the same."""

    code = "refused"


@dataclass(frozen=True, slots=True)
class Want:
    """Narrows `offers` where a provider has too many to list; a backend may give more than was wanted."""

    request: Request = field(default_factory=Request)


@dataclass(frozen=True, slots=True)
class Order:
    id: InstanceId
    """Also the tag."""
    offer: str
    location: str
    spot: bool
    capacity: Capacity
    project_id: ProjectId | None = None
    """Whose jobs it is launched for, where that is known."""


class Handle(NamedTuple):
    id: InstanceId
    name: str = ""
    """As the provider calls it; empty when its answer never reached us."""


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    async def offers(self, want: Want) -> Sequence[Offer]: ...

    async def launch(self, order: Order) -> str: ...

    async def look(self, handles: Sequence[Handle]) -> Mapping[InstanceId, Sight]: ...

    async def stop(self, handle: Handle, grace_s: float) -> None: ...

    async def destroy(self, handle: Handle) -> None: ...

    async def find(self, tag: InstanceId | None = None) -> Sequence[Handle]: ...

    def changed(self, tell: Callable[[], None]) -> None: ...

    async def close(self) -> None: ...
