"""One run over several hosts: they find each other by the addresses of the network between them."""

import pytest

from tests.hosts.ground import Stands
from tests.hosts.land import Land
from tests.machine import as_root

pytestmark = [as_root, pytest.mark.xdist_group("ssh")]

SPEAK = """
cat "$STOKER_MPI_HOSTFILE"
echo "$STOKER_NODES_IPS" | tr '\\n' ' '; echo "master $STOKER_MASTER_NODE_IP"
if [ "$STOKER_NODE_RANK" = 0 ]; then
  python3 -c 'import socket, os
s = socket.create_server(("", 7777)); c, who = s.accept(); print("heard from", who[0])'
else
  python3 -c 'import os, socket, time
for _ in range(200):
    try: socket.create_connection((os.environ["STOKER_MASTER_NODE_IP"], 7777)); break
    except OSError: time.sleep(0.05)
else: raise SystemExit(1)'
fi
"""


async def test_the_nodes_of_a_run_reach_each_other_over_the_internal_network(stand: Stands, shire: Land) -> None:
    """The server reaches them by other addresses than they reach each other."""
    hosts = [shire.host(), shire.host()]
    inner = [f"10.77.0.{number + 1}" for number in range(2)]
    for host, address in zip(hosts, inner, strict=True):
        host.run(f"ip addr add {address}/24 dev eth0")
    async with stand() as s, s.serving():
        assert (await s.apply("pair", hosts, network="10.77.0.0/24")).status == 201
        for host in hosts:
            await s.is_(host, "IDLE")
        run = await s.submit(SPEAK, nodes=2, env={"PATH": "/usr/bin:/bin"})
        done = await s.run_is(run, "DONE")
        assert {job["instance"] for job in done["jobs"]} == {(await s.of(host))["id"] for host in hosts}
        lines = (await s.log(run)).splitlines()
        ips = [line.partition(" ")[0] for line in lines[:2]]
        assert sorted(ips) == inner and all(line.endswith(" slots=1") for line in lines[:2])
        assert lines[2] == f"{' '.join(ips)} master {ips[0]}"
        assert lines[3] == f"heard from {ips[1]}"


async def test_a_host_outside_of_the_network_is_told_of(stand: Stands, shire: Land) -> None:
    """`ip` says it for one host, and wins."""
    host, other = shire.host(), shire.host()
    async with stand() as s, s.serving():
        await s.apply("pair", [host, {"host": other.ip, "ip": "10.99.3.3"}], network="10.99.0.0/16")
        said = await s.in_trouble(host, "no address in 10.99.0.0/16")
        assert host.ip in said and "say ip for this host" in said
        await s.is_(other, "IDLE")
