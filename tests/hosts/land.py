"""Hosts as a test needs them: network namespaces on one bridge, each with processes, files and an sshd of its own.

A host sees this machine's files through an overlay, and what it writes is its own, on a disk that can be full. It has
its own processes, which all die when it is switched off; /run and /tmp are empty after that, its disk is not. Its
network is a wire that can be cut and narrowed. It needs root, and all of it is removed at the end; what a test that was
killed has left behind is removed by the next one.
"""

import fcntl
import grp
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.hosts import group
from tests.hosts.packages import need
from tests.machine import unavailable

BASE: Final = Path("/var/tmp")
HOME: Final = pwd.getpwuid(0).pw_dir
PREFIX: Final = "stoker-land-"
LOCK: Final = BASE / f"{PREFIX}lock"
OWN: Final = ("root/.ssh", "root/.stoker", "var/lib/stoker", "var/spool/cron", "etc/cron.d", "etc/systemd", "etc/ssh")
"""What a host does not share with this machine: there it begins empty."""
CHECKOUT: Final = Path(__file__).resolve().parents[2]
"""Where the agents are that hosts start: to be seen there too, also where it is below /tmp or on a disk of its own."""
BOOT_S: Final = 10.0
LOOK_S: Final = 0.02

SSHD: Final = """\
Port 22
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized/%u
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile /run/sshd.pid
PrintMotd no
UseDNS no
MaxStartups 300
Subsystem sftp internal-sftp
"""

OUTSIDE: Final = """\
set -e
# What other tests have mounted just now would be in use for as long as this host is on.
awk '$2 ~ "^/tmp/stoker-tests-" {print $2}' /proc/mounts | while read -r place; do umount -l "$place" || true; done
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
mount -t sysfs sysfs "$1/root/sys"
mount -t tmpfs -o mode=0755 tmpfs "$1/root/run"
mount -t tmpfs -o mode=1777 tmpfs "$1/root/tmp"
cat /proc/sys/kernel/random/uuid >"$1/root/run/boot_id"
mount --bind "$1/root/run/boot_id" "$1/root/proc/sys/kernel/random/boot_id"
if [ ! -e "$1/root$3/pyproject.toml" ]; then mkdir -p "$1/root$3"; mount --bind "$3" "$1/root$3"; fi
eval "$4"
exec unshare --cgroup -- chroot "$1/root" /bin/bash --norc -c "$2" host
"""

INSIDE: Final = """\
cd /
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /run/sshd
/usr/sbin/sshd -f /etc/ssh/sshd_config -E /run/sshd.log
if [ -e /etc/land-cron ]; then rm -f /var/run/crond.pid /var/run/crond.reboot; /usr/sbin/cron; fi
if [ -e /etc/land-engine ]; then . /etc/land-engine; fi
touch /run/booted
while :; do sleep 3600; done
"""
"""The first process of a host, which bash is: while it waits for a child it buries whoever has no other parent."""


@dataclass
class Host:
    land: "Land"
    number: int
    disk: Path
    _process: "subprocess.Popen[bytes] | None" = None
    users: dict[str, int] = field(default_factory=dict)
    before: str = ""
    """What a shell of this machine does before its first process begins; $1/root is its root directory."""

    @property
    def ip(self) -> str:
        return f"{self.land.network}.{self.number + 10}"

    @property
    def space(self) -> str:
        return f"{self.land.name}-{self.number}"

    @property
    def _wire(self) -> str:
        return f"skv{self.land.number}n{self.number}"

    @property
    def written(self) -> Path:
        """Where what it has written lies."""
        return self.disk / "upper"

    # Its life.

    def boot(self) -> None:
        script = ["bash", "-c", OUTSIDE, "land", str(self.disk), INSIDE, str(CHECKOUT), self.before]
        wrapped = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "--", *script]
        with open(self.disk / "boot.log", "ab") as log:
            self._process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.space}", "--", *wrapped],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": HOME},
            )  # fmt: skip
        (self.disk / "pid").write_text(str(self._process.pid))
        deadline = time.monotonic() + BOOT_S
        while self.run("test -e /run/booted && test -s /run/sshd.pid", check=False) is None:
            said = (self.disk / "boot.log").read_text()
            assert time.monotonic() < deadline and self._process.poll() is None, f"host {self.number} is not up: {said}"
            time.sleep(LOOK_S)

    def switch_off(self) -> None:
        """All its processes are killed at once, as by a power cut; what was on its disk stays."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def reboot(self) -> None:
        self.switch_off()
        self.boot()

    @property
    def init(self) -> int:
        """Its first process, as this machine sees it."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children:
            raise ProcessLookupError
        return int(children[0])

    # Its wire.

    def cut(self) -> None:
        _ip("link", "set", self._wire, "down")

    def mend(self) -> None:
        _ip("link", "set", self._wire, "up")

    def narrow(self, megabits: float | None) -> None:
        """How much reaches it in a second; None: as much as there is."""
        _run("tc", "qdisc", "del", "dev", self._wire, "root", check=False)
        if megabits is not None:
            rate = f"{megabits:g}mbit"
            _run("tc", "qdisc", "add", "dev", self._wire, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "1s")

    # What is on it.

    def run(self, command: str, *, check: bool = True, user: str = "root") -> str | None:
        """What a command prints that is run on it; None when it fails and may."""
        if self._process is None:
            return None
        try:
            init = str(self.init)
        except (ProcessLookupError, FileNotFoundError):
            return None
        inside = ["nsenter", "--target", init, "--mount", "--pid", "--net", "--root", "--wd", "--"]
        words = [*inside, "/bin/sh", "-c", command]
        if user != "root":
            uid = self.users[user]
            inside += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
            words = [*inside, "/bin/sh", "-c", command]
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": HOME}
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=env, check=False)
        if done.returncode:
            assert not check, f"{command}: {done.returncode} {done.stderr} {done.stdout}"
            return None
        return done.stdout

    def start(self, words: Sequence[str]) -> "subprocess.Popen[bytes]":
        """A program that goes on, as root, where we are."""
        apart = ("--mount", "--pid", "--net", "--cgroup", "--root", "--wd")
        inside = ["nsenter", "--target", str(self.init), *apart, "--"]
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": HOME}
        line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
        return subprocess.Popen([*inside, "/bin/sh", "-c", line], stdin=subprocess.DEVNULL, env=environ)

    def processes(self) -> list[str]:
        """Those that live, but for the host's own."""
        told = self.run("ps -eo ppid=,stat=,args=") or ""
        lines = [line.split(None, 2) for line in told.splitlines()]
        own = ("ps ", "sshd:", "/usr/sbin/sshd", "/bin/sh -c ps ")
        living = (args for parent, state, args in lines if parent != "0" and not state.startswith("Z"))
        return sorted(args for args in living if not args.startswith(own))

    def files(self) -> set[str]:
        """What it has written and is still there."""
        found = set[str]()
        for place, directories, files in os.walk(self.written):
            here = Path(place).relative_to(self.written)
            found.update(str(here / name) for name in (*directories, *files))
        return {name for name in found if not re.match(r"(run|tmp|var/run|var/log)(/|$)", name)}

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        place = self.written / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def home(self, user: str) -> str:
        return f"/home/{user}"

    def user(self, name: str) -> None:
        """An ordinary one. Before the host is switched on."""
        uid = self.users[name] = 2001 + len(self.users)
        for file, line in (
            ("passwd", f"{name}:x:{uid}:{uid}::/home/{name}:/bin/sh"),
            ("group", f"{name}:x:{uid}:"),
            ("shadow", f"{name}:*:19000:0:99999:7:::"),
        ):
            place = self.written / "etc" / file
            before = place.read_text() if place.exists() else Path("/etc", file).read_text()
            place.write_text(f"{before.rstrip()}\n{line}\n")
        home = self.written / "home" / name
        home.mkdir(parents=True)
        os.chown(home, uid, uid)

    def admit(self, public_key: str, user: str = "root") -> None:
        self.write(f"/etc/ssh/authorized/{user}", public_key.rstrip() + "\n")

    def refuse_all(self, user: str = "root") -> None:
        (self.written / "etc/ssh/authorized" / user).unlink(missing_ok=True)

    def new_host_key(self) -> None:
        key = self.written / "etc/ssh/host_key"
        for one in (key, key.with_name("host_key.pub")):
            one.unlink(missing_ok=True)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"host{self.number}", "-f", str(key))

    @property
    def fingerprint(self) -> str:
        told = _run("ssh-keygen", "-l", "-f", str(self.written / "etc/ssh/host_key.pub"))
        return told.split()[1]

    def connections(self) -> int:
        """How many of SSH are open to it."""
        told = self.run("ss -Htn state established '( sport = :22 )'") or ""
        return len(told.splitlines())


class Land:
    """Hosts that reach each other and are reached from here."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root: hosts are network namespaces with mounts of their own")
        need("sshd", "openssh-server")
        self.number = os.getpid()
        self.name = f"{PREFIX}{self.number}-{secrets.token_hex(2)}"
        self.root = BASE / self.name
        self.hosts: list[Host] = []
        with open(LOCK, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sweep()
            self.root.mkdir(mode=0o711)
            (self.root / "owner").write_text(str(self.number))
            self._bridge()
        self.key = self.root / "key"
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "land", "-f", str(self.key))
        self.public_key = self.key.with_name("key.pub").read_text()

    def _bridge(self) -> None:
        taken = set(re.findall(r"\b10\.231\.(\d+)\.", _run("ip", "-o", "-4", "addr", "show")))
        free = next(number for number in range(1, 255) if str(number) not in taken)
        self.network, self.bridge = f"10.231.{free}", f"skb{self.number}"
        (self.root / "bridge").write_text(self.bridge)
        done = subprocess.run(["ip", "link", "add", self.bridge, "type", "bridge"], capture_output=True, text=True)
        if done.returncode:
            unavailable(f"this root may make no bridge: {done.stderr.strip()}")
        _ip("addr", "add", f"{self.network}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def host(self, *, users: Sequence[str] = (), disk_mb: int = 2048, cron: bool = False, boot: bool = True) -> Host:
        """A new one, with a key that lets in whoever has the land's."""
        number = len(self.hosts)
        disk = self.root / f"host{number}"
        disk.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={disk_mb}m,mode=0755", "tmpfs", str(disk))
        for name in ("upper", "work", "root"):
            (disk / name).mkdir()
        host = Host(self, number, disk)
        self.hosts.append(host)
        for name in OWN:
            own = disk / "upper" / name
            own.mkdir(parents=True)
            os.setxattr(own, "trusted.overlay.opaque", b"y")
        for above in ("root", "var", "etc"):
            (disk / "upper" / above).chmod(Path("/", above).stat().st_mode & 0o7777)
        tables = disk / "upper/var/spool/cron/crontabs"
        tables.mkdir()
        if (group := _group("crontab")) is not None:
            os.chown(tables, 0, group)
            tables.chmod(0o1730)
        os.rmdir(disk / "upper/var/lib/stoker")
        os.mknod(disk / "upper/var/lib/stoker", 0o600 | 0o020000, 0)  # a whiteout: there is none
        for name in (".bashrc", ".profile"):
            # What this machine's root has there may write files.
            host.write(f"{HOME}/{name}", "")
        host.write("/etc/ssh/sshd_config", SSHD)
        host.new_host_key()
        host.admit(self.public_key)
        for name in users:
            host.user(name)
            host.admit(self.public_key, name)
        if cron:
            need("cron", "cron")
            host.write("/etc/land-cron", "")
        self._wire(host)
        if boot:
            host.boot()
        return host

    def _wire(self, host: Host) -> None:
        wire = f"skv{self.number}n{host.number}"
        _ip("netns", "add", host.space)
        _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", host.space)
        _ip("link", "set", wire, "master", self.bridge, "up")
        _ip("-n", host.space, "addr", "add", f"{host.ip}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            _ip("-n", host.space, "link", "set", name, "up")
        _ip("-n", host.space, "route", "add", "default", "via", f"{self.network}.1")

    def close(self) -> None:
        for host in self.hosts:
            host.switch_off()
        _remove(self.root)


@contextmanager
def land() -> Iterator[Land]:
    made = Land()
    try:
        yield made
    finally:
        made.close()


def sweep() -> None:
    """Removes what lands have left whose makers are gone."""
    for place in BASE.glob(f"{PREFIX}*-*"):
        with suppress(FileNotFoundError, ValueError):
            if not Path("/proc", (place / "owner").read_text().strip()).exists():
                _remove(place)


def _remove(root: Path) -> None:
    for disk in sorted(root.glob("host*")):
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid = int((disk / "pid").read_text())
            if f"{disk}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                # With it go all processes of the host.
                os.kill(pid, signal.SIGKILL)
        _run("ip", "netns", "del", f"{root.name}-{disk.name.removeprefix('host')}", check=False)
        group.remove(f"{root.name}-{disk.name.removeprefix('host')}")
        _run("umount", "--lazy", str(disk), check=False)
    with suppress(FileNotFoundError):
        _run("ip", "link", "del", (root / "bridge").read_text(), check=False)
    shutil.rmtree(root, ignore_errors=True)


def _group(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
    return done.stdout
