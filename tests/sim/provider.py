"""A simulated provider of machines: slow, full, forgetful, lying, preempting."""

from typing import TYPE_CHECKING
from uuid import UUID

from stoker.core.errors import Unavailable
from stoker.core.fleet import Fleet
from stoker.core.ids import FleetId
from stoker.core.instance_facts import Gone, PreemptionNoticed
from stoker.core.offer import Offer
from stoker.core.resources import Capacity
from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.world import World

FLEET = FleetId(UUID(int=7))
CAPACITY = Capacity(cpu=4, memory_mb=8192, disk_mb=10_000)
OFFER = Offer("cloud", "medium", "here", CAPACITY, price=1.0, spot=True, available=2, blocks=4)
POD = Offer("pods", "pod", "here", CAPACITY, price=1.5, blocks=4, shim=False)
MAX_NODES = 4
POLICY = Fleet(0, MAX_NODES, backends=("cloud", "pods"))


class Refusal(Exception):
    """No capacity, says the provider."""


class Provider:
    """Machines by tag; a tag is the instance's id."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.machines: dict[UUID, Host] = {}

    def offers(self, now: float) -> tuple[Offer, ...]:
        return (OFFER, POD)

    def create(self, tag: UUID, shim: bool) -> str:
        """Keyed by our tag: asked twice, one machine."""
        if tag in self.machines:
            return f"machine-{tag}"
        if self.world.chance("provider refuses", 0.08):
            raise Refusal("no capacity")
        if self.world.chance("provider creates and forgets", 0.05):
            return f"machine-{tag}"
        self.machines[tag] = Host(self.world, tag, owned=False, has_shim=shim)
        self.world.hosts[tag] = self.machines[tag]
        if self.world.chance("provider refuses and creates", 0.05):
            raise Refusal("no capacity")
        if self.world.chance("machine never comes up", 0.04):
            self.machines[tag].stillborn = True
        return f"machine-{tag}"

    def destroy(self, tag: UUID) -> None:
        if tag in self.machines and self.world.chance("provider is slow to destroy", 0.1):
            raise Unavailable("still shutting down")
        host = self.machines.pop(tag, None)
        if host is not None:
            host.vanish()

    def preempt(self, tag: UUID, notice_s: float) -> None:
        """With notice the machine stays for a while; without, it is simply gone."""
        if notice_s:
            self.world.post_instance(tag, PreemptionNoticed(notice_s))
            self.world.later(notice_s, lambda: self._take(tag))
        else:
            self._take(tag)

    def _take(self, tag: UUID) -> None:
        host = self.machines.pop(tag, None)
        if host is not None:
            host.vanish()
            self.world.post_instance(tag, Gone("preempted"))
