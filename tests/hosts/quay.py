"""A host with a container engine of its own, and a directory that it shares with others: what makes it like a machine
of a small cluster, all of which can be taken away from it.

The engine is one of the host's processes, below its network and its mounts, so that its containers see the host's files
and die with the host. Its images are on the host's disk and survive a reboot.
"""

import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stoker.engine.install import ROOT_BASE
from stoker.shim.cgroup import name_of
from tests.hosts import group
from tests.hosts.dock import DISK
from tests.hosts.engine import busybox_tree
from tests.hosts.land import Host
from tests.hosts.packages import need
from tests.machine import unavailable

SHARED: Final = "/srv/trail"
"""Where hosts see the directory that they share."""
START_S: Final = 30.0
LOOK_S: Final = 0.05
SHIM: Final = f"{ROOT_BASE}/shim"

SHARING: Final = """\
mkdir -p "$1/root{seen}"
mount --bind {shared} "$1/root{seen}"
"""
RUNTIME: Final = f"""\
#!/bin/sh
before= bundle=
for word in "$@"; do
  case $before in --bundle) bundle=$word ;; esac
  before=$word
done
mount='{{"destination":"{SHARED}","type":"bind","source":"{SHARED}","options":["rbind","rw"]}}'
if [ -n "$bundle" ]; then sed -i 's#"mounts":\\[#&'"$mount"',#' "$bundle/config.json"; fi
exec runc "$@"
"""
"""Containers see what hosts share, whatever they ask for: nobody may ask for a directory of a host."""
ENGINE: Final = """\
for group in /sys/fs/cgroup/*/cgroup.procs; do
  case $group in */host/*) echo 0 >$group; break ;; esac
  [ -e /sys/fs/cgroup/cgroup.controllers ] || echo 0 >$group
done
rm -f /run/docker.pid
noted=/run/docker/containerd/containerd.pid tries=0
while kill -0 "$(cat $noted)" && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -0 "$(cat $noted)" || rm -f $noted
exec dockerd -H unix:///run/docker.sock --iptables=false --ip6tables=false --shutdown-timeout 3 \
  --add-runtime seeing=/srv/seeing --default-runtime seeing "$@"
"""
"""First it goes where the host's other processes are. What a killed one left behind would keep it from starting: it
takes a process that nobody has buried yet for one that lives."""


@dataclass(frozen=True)
class Traces:
    """What can be found on a host of whoever was there."""

    processes: tuple[str, ...]
    files: frozenset[str]
    mounts: frozenset[str]
    doors: frozenset[str]
    """Sockets on which somebody listens, of the network and of the file system."""
    containers: tuple[str, ...]
    groups: frozenset[str]
    """Control groups of our agent."""

    def beyond(self, before: "Traces") -> dict[str, list[str]]:
        """What was not there before."""
        left = {
            "processes": list(self.processes if self.processes != before.processes else ()),
            "files": sorted(self.files - before.files),
            "mounts": sorted(self.mounts - before.mounts),
            "doors": sorted(self.doors - before.doors),
            "containers": list(self.containers),
            "groups": sorted(self.groups - before.groups),
        }
        return {kind: found for kind, found in left.items() if found}


@dataclass
class Quay:
    host: Host
    shared: Path
    lasting: bool = False
    """Its containers go on without it."""
    _engine: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    # Its life.

    def boot(self) -> None:
        host, shared = self.host, SHARING.format(shared=shlex.quote(str(self.shared)), seen=SHARED)
        host.before = DISK + shared + group.joining(host.space)
        host.write("/etc/land-engine", group.MOUNTING)
        host.write("/srv/seeing", RUNTIME, 0o755)
        host.boot()
        self.start_engine()

    def start_engine(self) -> None:
        """Does not wait until it answers."""
        need("dockerd", "docker.io")
        words = ["/bin/sh", "-c", ENGINE, "dockerd", *(["--live-restore"] if self.lasting else [])]
        self._engine = self.host.start(["/bin/sh", "-c", f"exec {shlex.join(words)} >>/run/dockerd.log 2>&1"])

    def engine_is_up(self) -> None:
        deadline = time.monotonic() + START_S
        while self.host.run("docker version", check=False) is None:
            if time.monotonic() > deadline:
                unavailable(f"no container engine starts on a host: {self.host.run('tail -n 20 /run/dockerd.log')}")
            time.sleep(LOOK_S)

    def end_engine(self, number: int = signal.SIGKILL) -> None:
        """Of the engine alone, which is no container's parent."""
        if self._engine is not None:
            self.host.run(f"kill -{int(number)} $(cat /run/docker.pid)", check=False)
            # In good order it ends its containers first.
            self._engine.wait(START_S)
            self._engine = None

    def kill_shim(self) -> None:
        self.host.run(f"kill -9 $(cat {SHIM}/pid)", check=False)

    def reboot(self) -> None:
        self.host.switch_off()
        # Of a machine that was off no group is left.
        group.remove(self.host.space)
        if self._engine is not None:
            self._engine.wait(START_S)
        self.boot()

    def make_image(self, tree: Path) -> None:
        """With what programs of these tests need: a shell, and locks."""
        if not tree.exists():
            busybox_tree(tree)
            _copy(need("flock", "util-linux"), tree)
        self.host.run(f"tar -C {shlex.quote(str(tree))} -c . | docker import - busybox")

    # What is on it.

    def containers(self) -> tuple[str, ...]:
        return tuple((self.host.run("docker ps --all --quiet") or "").split())

    def traces(self) -> Traces:
        told = self.host.run("cut -d ' ' -f 2,3 /proc/mounts") or ""
        listening = (
            self.host.run("ss -Hlntu | awk '{print $1, $5}'; find /run /tmp -type s ! -path '/run/docker*'") or ""
        )
        groups = self.host.run(f"find {group.ROOT} -type d -name {name_of(Path(SHIM))}") or ""
        return Traces(
            tuple(self.host.processes()),
            frozenset(self.host.files()),
            frozenset(one for one in told.splitlines() if "/var/lib/docker/" not in one and "/run/docker/" not in one),
            frozenset(listening.splitlines()),
            self.containers(),
            frozenset(groups.split()),
        )


def _copy(program: str, tree: Path) -> None:
    """A program into a tree that has no library yet."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for path in (program, *re.findall(r"(/\S+) \(0x", told)):
        place = tree / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
