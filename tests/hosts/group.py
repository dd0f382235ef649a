"""Control groups that a host of a land has for itself, of version 1 or 2: below them are those of its containers."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
CONTROLLERS: Final = ("memory", "cpu", "cpuacct", "devices", "pids", "freezer", "systemd")
"""Of version 1, those that an engine needs or a test looks at."""
GONE_S: Final = 5.0


def directories(name: str) -> list[Path]:
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT / name]
    return [ROOT / one / name for one in CONTROLLERS if (ROOT / one).is_dir()]


def joining(name: str) -> str:
    """What a shell does to be in them, with all that it starts."""
    return "".join(f'mkdir -p "{one}"; echo 0 >"{one}/cgroup.procs"\n' for one in directories(name))


MOUNTING: Final = """\
if [ "$(stat -f -c %T /sys/fs/cgroup)" = sysfs ]; then mount -t tmpfs -o mode=0755 tmpfs /sys/fs/cgroup; fi
if grep -q ":memory:" /proc/self/cgroup; then
  for one in memory cpu cpuacct devices pids freezer; do
    if grep -q "[:,]$one[:,]" /proc/self/cgroup; then
      mkdir /sys/fs/cgroup/$one; mount -t cgroup -o $one cgroup /sys/fs/cgroup/$one
    fi
  done
  mkdir /sys/fs/cgroup/systemd; mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
else
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  # A group that hands controllers down may hold no processes.
  mkdir /sys/fs/cgroup/host
  for one in $(cat /sys/fs/cgroup/cgroup.procs); do echo $one >/sys/fs/cgroup/host/cgroup.procs; done
  sed -e 's/ / +/g' -e 's/^/+/' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
fi
"""
"""On the host: there they are the roots, and nothing above them is seen."""


def remove(name: str) -> None:
    """Once the host is off; its processes take a moment to be gone."""
    deadline = time.monotonic() + GONE_S
    for top in directories(name):
        while top.exists():
            for place, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):
                    os.rmdir(place)
            if time.monotonic() > deadline:
                return
            time.sleep(0.02 if top.exists() else 0.0)
