"""A link is cut in every state that a host and a job can be in: for a moment, for a minute, for ever."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from stoker.transport import parcel
from tests.hosts.ground import Stands, hurry
from tests.hosts.land import Host, Land
from tests.hosts.stand import Stand
from tests.hosts.test_ssh_luck import copies, unreachable, whole
from tests.machine import as_root
from tests.process.house import until

pytestmark = [as_root, pytest.mark.xdist_group("ssh")]

COUNTS: Final = "i=0; while [ ! -e /tmp/go ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo end"
SAVES: Final = f"trap 'sleep 1; echo saved; exit 0' TERM; {COUNTS}"
STATES: Final = ("met", "shipped", "idle", "starting", "running", "ended", "stopping", "leaving")


class Cuts:
    """Eight hosts, each with its link cut in another state."""

    def __init__(self, s: Stand, shire: Land, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s, self.hosts = s, {state: shire.host() for state in STATES}
        self.runs: dict[str, str] = {}
        self._cut_at_shipping, self._shipping, real = False, asyncio.Event(), parcel.ship

        async def ship(*given: Any) -> None:
            if self._cut_at_shipping:
                self.hosts["shipped"].cut()
                self._shipping.set()
            await real(*given)

        monkeypatch.setattr(parcel, "ship", ship)

    async def all(self) -> None:
        for state in STATES[2:]:
            assert (await self.s.apply(state, [self.hosts[state]])).status == 201
        for state in STATES[2:]:
            await self.s.is_(self.hosts[state], "IDLE", patience_s=60)
        for state in ("running", "ended", "stopping"):
            self.runs[state] = await self._begun(state)
        self.hosts["met"].cut()
        await self.s.apply("met", [self.hosts["met"]])
        self._cut_at_shipping = True
        await self.s.apply("shipped", [self.hosts["shipped"]])
        await self._shipping.wait()
        self._cut_at_shipping = False
        for state in ("idle", "starting", "running", "ended", "stopping", "leaving"):
            self.hosts[state].cut()
        self.hosts["ended"].run("touch /tmp/go")
        self.runs["starting"] = await self.s.submit("echo once", fleets=["starting"])
        await self.s.told("POST", f"runs/{self.runs['stopping']}/stop", {"abort": False})
        await self.s.told("DELETE", "fleets/leaving")

    async def _begun(self, state: str) -> str:
        # Its grace begins when somebody asks, whenever the host hears of it: it is longer than any cut here.
        run = await self.s.submit(SAVES if state == "stopping" else COUNTS, fleets=[state], stop_duration="5m")
        await self.s.run_is(run, "RUNNING")
        await until(lambda: copies(self.hosts[state]) == 1, "it counts")
        return run

    def mend(self) -> None:
        for host in self.hosts.values():
            host.mend()


async def settled(cuts: Cuts) -> None:
    """Everything is as if nothing had been."""
    s, hosts, runs = cuts.s, cuts.hosts, cuts.runs
    hosts["running"].run("touch /tmp/go")
    for state, ends in (("starting", "DONE"), ("running", "DONE"), ("ended", "DONE"), ("stopping", "TERMINATED")):
        done = await s.run_is(runs[state], ends, patience_s=60)
        assert [job["submission"] for job in done["jobs"]] == [1], state
        assert copies(hosts[state]) == 0, state
    assert await s.log(runs["starting"]) == "once\n"
    assert whole(await s.log(runs["running"])) and whole(await s.log(runs["ended"]))
    assert (await s.log(runs["stopping"])).endswith("saved\n")
    for state in STATES[:-1]:
        await s.is_(hosts[state], "IDLE", patience_s=60)
        assert (await s.of(hosts[state]))["unreachable_since"] is None

    async def left() -> bool:
        return await s.of(hosts["leaving"]) is None

    await until(left, "the one that was leaving has left")
    assert hosts["leaving"].run("ls -d /var/lib/stoker/host", check=False) is None


@pytest.mark.parametrize("cut_s", [5.0, 60.0], ids=["5s", "60s"])
async def test_a_link_is_cut_in_each_state(
    stand: Stands, shire: Land, monkeypatch: pytest.MonkeyPatch, cut_s: float
) -> None:
    """By the limits that people have: five seconds are less than keep-alives wait, a minute is more."""
    async with stand() as s, s.serving():
        cuts = Cuts(s, shire, monkeypatch)
        await cuts.all()
        await asyncio.sleep(cut_s)
        for state in ("running", "ended"):
            assert (await s.told("GET", f"runs/{cuts.runs[state]}"))["status"] == "RUNNING", state
            away = (await s.of(cuts.hosts[state]))["unreachable_since"] is not None
            assert away is (cut_s == 60.0), state
        assert (await s.told("GET", f"runs/{cuts.runs['stopping']}"))["status"] == "TERMINATING"
        assert (await s.of(cuts.hosts["leaving"]))["status"] == "TERMINATING"
        cuts.mend()
        await settled(cuts)


async def test_a_link_is_cut_for_ever_in_each_state(
    stand: Stands, shire: Land, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is given up by itself. Whoever knows that the hosts are gone says so, and everything ends; when they are
    back after all and somebody names them again, what they still have is removed before anything runs there."""
    hurry(monkeypatch)
    async with stand() as s, s.serving():
        cuts = Cuts(s, shire, monkeypatch)
        await cuts.all()
        for state in ("idle", "starting", "running", "ended", "stopping"):
            await unreachable(s, cuts.hosts[state])
        for state in ("running", "stopping"):
            assert (await s.told("GET", f"runs/{cuts.runs[state]}"))["status"] in ("RUNNING", "TERMINATING")
        assert copies(cuts.hosts["running"]) == 1
        for host in cuts.hosts.values():
            await forced(s, host)
        ends = {"starting": ("FAILED",), "running": ("FAILED",), "ended": ("FAILED",), "stopping": ("TERMINATED",)}
        for state, run in cuts.runs.items():
            await s.run_is(run, *ends[state], patience_s=60)
        cuts.mend()
        for state in STATES[:-1]:
            await s.told("DELETE", f"fleets/{state}")
        await gone(s)
        assert (await s.apply("again", list(cuts.hosts.values()))).status == 201
        for state, host in cuts.hosts.items():
            await s.is_(host, "IDLE", patience_s=60)
            await until(clean(host), f"nothing is left on the one that was {state}")


async def forced(s: Stand, host: Host) -> None:
    """At first it is to leave whatever runs on it; and since it cannot be reached for that, it is gone. One that was
    never met has nothing to leave, and is gone at once; its fleet names it again."""
    one = await s.of(host)

    async def heeded() -> Any:
        now = await s.of(host)
        heard = now is not None and (now["id"] != one["id"] or now["status"] == "TERMINATING")
        return now if heard else None

    if one["status"] != "TERMINATING":
        await s.told("DELETE", f"instances/{one['name']}?force=true")
        if (await until(heeded, f"{host} is to leave"))["id"] != one["id"]:
            return
        await s.in_trouble(host, "does not answer")
    await s.told("DELETE", f"instances/{one['name']}?force=true")


async def gone(s: Stand) -> None:
    async def so() -> bool:
        return not await s.instances()

    await until(so, "no instance is there")


def clean(host: Host) -> Callable[[], bool]:
    return lambda: copies(host) == 0 and (host.run("ls /var/lib/stoker/host/shim/tasks") or "").strip() == ""
