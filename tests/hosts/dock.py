"""Hosts of a land that have a container engine: `dockerd` with a disk of its own there, which outlives a reboot."""

import time
from pathlib import Path
from typing import Any, Final

from tests.hosts import group
from tests.hosts.engine import START_S, Engine, busybox_tree
from tests.hosts.land import Host, Land
from tests.hosts.packages import need

DISK: Final = """\
mkdir -p "$1/docker" "$1/root/var/lib/docker"
mount --bind "$1/docker" "$1/root/var/lib/docker"
"""
"""Images are layers of an overlay, which cannot lie on the overlay that the host's files are."""
DOCKERD: Final = """\
rm -f /var/run/docker.pid /var/run/docker/containerd/containerd.pid
dockerd --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false >>/var/log/dockerd.log 2>&1 </dev/null &
"""


class Dock(Engine):
    """That of a host, as it is seen from here."""

    def __init__(self, host: Host, home: Path) -> None:
        super().__init__(home)
        self.on = host

    @property
    def socket(self) -> Path:
        return Path(f"/proc/{self.on.init}/root/run/docker.sock")

    def wait(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.answers():
            said = self.on.run("tail -n 20 /var/log/dockerd.log", check=False)
            assert time.monotonic() < deadline, f"the engine of a host does not start: {said}"
            time.sleep(0.02)

    def kill(self) -> None:
        """With what it has started for itself; its containers go on, until the next one ends them."""
        self.on.run("kill -9 $(cat /var/run/docker.pid) $(cat /var/run/docker/containerd/containerd.pid)")

    def start_again(self) -> None:
        self.on.run(DOCKERD)
        self.wait()


def docked(land: Land, directory: Path, **more: Any) -> Dock:
    """A host whose engine is up and has the image `busybox`."""
    need("dockerd", "docker.io")
    host = land.host(boot=False, **more)
    host.before = DISK + group.joining(host.space)
    host.write("/etc/land-engine", group.MOUNTING + DOCKERD)
    host.boot()
    home = directory / f"dock-{host.space}"
    home.mkdir()
    made = Dock(host, home)
    made.wait()
    made.make_image("busybox:latest", busybox_tree(home / "tree"))
    return made
