"""What a shim says of its host is what it may use of it: quotas and limits of its own control groups count."""

import os
from pathlib import Path

import psutil
import pytest

from stoker.shim import allowance, host
from stoker.shim.allowance import Allowance

GB = 1024**3
V1 = """\
25 1 0:21 / /sys rw - sysfs sysfs rw
31 25 0:27 {below} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 {below} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2 = "31 25 0:27 {below} /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
CPU, MEMORY = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"
NO_LIMIT = 9223372036854771712
"""What version 1 says where there is none."""


def tree(root: Path, mountinfo: str, membership: str, **files: str) -> Path:
    """A machine's files: `path=content`, paths as a kernel has them."""
    for path, content in {"/proc/self/mountinfo": mountinfo, "/proc/self/cgroup": membership, **files}.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content + "\n")
    return root


def version_1(root: Path, *, below: str = "/", group: str = "/", **files: str) -> Allowance:
    membership = f"4:memory:{group}\n1:cpu,cpuacct:{group}\n0::/"
    return allowance.read(tree(root, V1.format(below=below), membership, **files))


def version_2(root: Path, *, below: str = "/", group: str = "/", **files: str) -> Allowance:
    return allowance.read(tree(root, V2.format(below=below), f"0::{group}", **files))


def test_version_2_a_container_with_both_limits(tmp_path: Path) -> None:
    found = version_2(
        tmp_path,
        **{"/sys/fs/cgroup/cpu.max": "150000 100000", "/sys/fs/cgroup/memory.max": str(2 * GB)},
    )
    assert found == Allowance(cpus=1.5, memory_bytes=2 * GB)


def test_version_2_the_tightest_group_above_us_counts(tmp_path: Path) -> None:
    """A slice with less memory than the unit in it claims, and a unit with less CPU than its slice."""
    found = version_2(
        tmp_path,
        group="/user.slice/stoker.service",
        **{
            "/sys/fs/cgroup/user.slice/cpu.max": "max 100000",
            "/sys/fs/cgroup/user.slice/memory.max": str(GB),
            "/sys/fs/cgroup/user.slice/stoker.service/cpu.max": "25000 50000",
            "/sys/fs/cgroup/user.slice/stoker.service/memory.max": str(4 * GB),
        },
    )
    assert found == Allowance(cpus=0.5, memory_bytes=GB)


def test_version_2_what_a_group_beside_ours_may_use_is_nothing_to_us(tmp_path: Path) -> None:
    found = version_2(tmp_path, group="/a/ours", **{"/sys/fs/cgroup/a/theirs/cpu.max": "10000 100000"})
    assert found == Allowance()


def test_version_1_a_container_that_sees_its_own_part_of_the_tree(tmp_path: Path) -> None:
    """The mount shows the container's group as if it were the top; our membership is told as the host knows it."""
    found = version_1(
        tmp_path,
        below="/docker/x",
        group="/docker/x/inner",
        **{
            f"{CPU}/cpu.cfs_quota_us": "300000",
            f"{CPU}/cpu.cfs_period_us": "100000",
            f"{CPU}/inner/cpu.cfs_quota_us": "-1",
            f"{CPU}/inner/cpu.cfs_period_us": "100000",
            f"{MEMORY}/memory.limit_in_bytes": str(3 * GB),
            f"{MEMORY}/inner/memory.limit_in_bytes": str(NO_LIMIT),
        },
    )
    assert found == Allowance(cpus=3.0, memory_bytes=3 * GB)


def test_version_1_without_limits(tmp_path: Path) -> None:
    found = version_1(
        tmp_path,
        **{
            f"{CPU}/cpu.cfs_quota_us": "-1",
            f"{CPU}/cpu.cfs_period_us": "100000",
            f"{MEMORY}/memory.limit_in_bytes": str(NO_LIMIT),
        },
    )
    assert found.cpus is None
    assert host.capacity(found, cpus=4, memory_bytes=8 * GB) == (4, 8 * 1024)


@pytest.mark.parametrize("group", ["/elsewhere", "/../.."])
def test_a_group_that_cannot_be_seen_leaves_what_the_mount_shows(tmp_path: Path, group: str) -> None:
    found = version_2(tmp_path, below="/docker/x", group=group, **{"/sys/fs/cgroup/memory.max": str(GB)})
    assert found.memory_bytes == GB


@pytest.mark.parametrize("said", ["", "max", "-1", "x y", "100000", "0 0", "100000 0", "-5 100000"])
def test_what_makes_no_sense_limits_nothing(tmp_path: Path, said: str) -> None:
    found = version_2(tmp_path, **{"/sys/fs/cgroup/cpu.max": said, "/sys/fs/cgroup/memory.max": "-7"})
    assert found == Allowance()


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert allowance.read(tmp_path) == Allowance()
    assert allowance.read(tree(tmp_path, "", "")) == Allowance()


def test_a_host_has_no_more_than_its_machine_whatever_its_groups_say() -> None:
    assert host.capacity(Allowance(64.0, 999 * GB), cpus=2, memory_bytes=4 * GB) == (2, 4 * 1024)
    assert host.capacity(Allowance(1.5, GB), cpus=2, memory_bytes=4 * GB) == (1.5, 1024)
    assert host.capacity(Allowance(1 / 3, GB), cpus=2, memory_bytes=4 * GB) == (0.333, 1024), "rounded down"
    assert host.capacity(Allowance(0.0001, 1000), cpus=2, memory_bytes=4 * GB) == (0.001, 1), "never nothing"


def test_this_machine_is_read_too(tmp_path: Path) -> None:
    seen = host.look(tmp_path, (), cgroups=False, project_id=None, docker="")
    assert 0 < seen.cpus <= len(os.sched_getaffinity(0))
    assert 0 < seen.memory_mb <= psutil.virtual_memory().total // 1024**2
