"""Containers on hosts that are reached by SSH: what the bundle that was shipped there is to them."""

from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from stoker.bundle.place import Bundle
from stoker.engine.install import ROOT_BASE
from tests.hosts.dock import Dock
from tests.hosts.ground import Stands
from tests.hosts.land import Land
from tests.machine import as_root
from tests.process.house import until

pytestmark = [as_root, pytest.mark.xdist_group("ssh")]


@pytest.fixture
def dock(shire: Land) -> Iterator[Dock]:
    """A host with an engine."""
    shared = shire.root / f"shared-{uuid4().hex[:6]}"
    shared.mkdir(mode=0o777)
    made = Dock(shire.host(), shared)
    made.furnish()
    made.engine_is_up()
    made.make_image(shared / "tree")
    yield made
    made.host.switch_off()


async def test_a_container_outlives_an_upgrade_of_the_agents_it_was_started_by(
    stand: Stands, dock: Dock, bundle: Bundle
) -> None:
    """Its runner is of the bundle that lies on the host, where nothing is that one could be made of; what it runs from
    stays until it has ended, though nobody on the host itself runs from there any more."""
    before = dock.traces()
    async with stand() as s:
        s.parcel = bundle
        async with s.serving():
            await s.apply("office", [dock.host])
            await s.is_(dock.host, "IDLE")
            run = await s.submit("while [ ! -e /tmp/go ]; do sleep 0.1; done; echo end; exit 3", image="busybox")
            await s.run_is(run, "RUNNING")
        # The same agents by another name: of what they are made, nothing has to travel.
        s.parcel = replace(bundle, digest=uuid4().hex)
        async with s.serving():

            def renewed() -> bool:
                return (dock.host.run(f"cat {ROOT_BASE}/current") or "").strip() == s.parcel.digest

            await until(renewed, "the agents are the new ones")
            trees = set((dock.host.run(f"ls {ROOT_BASE}/bundle") or "").split())
            assert trees == {bundle.digest, s.parcel.digest, "layers"}
            (box,) = dock.containers()
            dock.host.run(f"docker exec {box} /stoker/bundle/lib/ld.so --version")
            dock.host.run(f"docker exec {box} touch /tmp/go")
            ended = await s.run_is(run, "FAILED")
            assert (ended["exit_code"], await s.log(run)) == (3, "end\n")
            await s.told("DELETE", "fleets/office")

            async def gone() -> bool:
                return await s.of(dock.host) is None

            await until(gone, "it is gone")
    assert dock.traces().beyond(before) == {}
