"""A host with nothing but sshd: no Python, nothing of ours; the bundle brings all that it takes."""

import sys
from pathlib import Path

import pytest

import stoker
from stoker.bundle.place import Bundle
from tests.hosts.ground import Stands
from tests.hosts.land import Land
from tests.machine import as_root
from tests.process.house import until

pytestmark = [as_root, pytest.mark.xdist_group("ssh")]

OURS = [sys.base_prefix, sys.prefix, str(Path(stoker.__file__).parents[2]), "/opt", "/usr/local", "/usr/lib/python3"]
BARE = f"""
for place in {" ".join(OURS)}; do
  if [ -d $place ]; then mount -t tmpfs tmpfs $place; fi
done
rm -f /usr/bin/python3*
! command -v python3
"""
"""Neither a Python nor this checkout is there."""


async def test_a_host_with_nothing_but_sshd(stand: Stands, shire: Land, bundle: Bundle) -> None:
    host = shire.host()
    host.run(BARE)
    files, processes = host.files(), host.processes()
    async with stand() as s:
        s.parcel = bundle
        async with s.serving():
            await s.apply("bare", [host])
            one = await s.is_(host, "IDLE", patience_s=60)
            assert "MB" in one["steps"][2]["message"]
            run = await s.submit("echo without python; env | grep -c LD_ || true")
            await s.run_is(run, "DONE")
            assert await s.log(run) == "without python\n0\n"
            await s.told("DELETE", "fleets/bare")

            async def gone() -> bool:
                return await s.of(host) is None

            await until(gone, "it is gone")
        assert host.processes() == processes
        assert host.files() - files == set()
