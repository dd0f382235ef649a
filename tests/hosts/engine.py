"""A container engine of a test's own, beside whatever else runs on this machine, and images that nobody has to pull.

Its data, sockets and bridge are its own, below one temporary directory; at the end nothing is left of it. It needs
root, and the package docker.io. Images are made of trees with `docker import`.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.runner import proc
from tests.hosts.packages import need
from tests.machine import unavailable

START_S = 30.0
APPLETS = """sh ls cat sleep echo env id kill dd wc head tail grep nc wget true false test pwd touch mkdir rm yes seq tr
hostname ps stat readlink ln find mount""".split()  # noqa: SIM905
PASSWD = "root:x:0:0:root:/srv:/bin/sh\napp:x:1234:1235::/srv/app:/bin/sh\n"
GROUP = "root:x:0:\napp:x:1235:\nstaff:x:1300:app,other\n"


@dataclass
class Engine:
    """`dockerd` with a directory of its own. `data` is where its images are, if not there."""

    home: Path
    data: Path | None = None
    process: "subprocess.Popen[bytes] | None" = None
    bridge: str = field(default_factory=lambda: f"stk{secrets.token_hex(4)}")
    live_restore: bool = False
    started: bool = False

    @property
    def socket(self) -> Path:
        return self.home / "docker.sock"

    @property
    def host(self) -> str:
        """As `DOCKER_HOST`."""
        return f"unix://{self.socket}"

    # Its life.

    def start(self) -> None:
        self._make_bridge()
        self._forget_the_dead()
        command = [need("dockerd", "docker.io"), "--data-root", str(self.data or self.home / "data")]
        command += ["--exec-root", str(self.home / "exec"), "--pidfile", str(self.home / "pid"), "-H", self.host]
        # No rules of a firewall: published ports are served by docker-proxy, which the tests only need on loopback.
        command += ["--bridge", self.bridge, "--iptables=false", "--ip6tables=false", "--ip-masq=false"]
        command += ["--ip-forward=false", "--containerd-namespace", self.bridge, "--shutdown-timeout", "3"]
        if self.live_restore:
            command.append("--live-restore")
        with open(self.home / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", start_new_session=True)
        deadline = time.monotonic() + START_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                assert not self.started, f"it does not start again: {(self.home / 'log').read_text()[-2000:]}"
                unavailable(f"no container engine starts here: {(self.home / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        self.started = True

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/_ping")[0] == 200
        except OSError:
            return False

    def end(self, number: int = signal.SIGTERM) -> None:
        """Of the engine alone; what containers do then is what the test wants to know."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(START_S)
            self.process = None

    def restart(self, number: int = signal.SIGTERM) -> None:
        self.end(number)
        self.start()

    def clear(self) -> None:
        """Nothing of it is left: containers, mounts, the bridge, files."""
        with suppress(OSError):
            self.remove_containers()
        self.end()
        self._kill_leftovers()
        for mount in reversed(_mounts_below(self.home)):
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
        subprocess.run([need("ip", "iproute2"), "link", "del", self.bridge], capture_output=True, check=False)
        shutil.rmtree(self.home, ignore_errors=True)

    def _forget_the_dead(self) -> None:
        """What a killed one left behind would keep the next one from starting: it takes a process that nobody has
        waited for yet for one that lives."""
        (self.home / "pid").unlink(missing_ok=True)
        noted = self.home / "exec/containerd/containerd.pid"
        with suppress(FileNotFoundError, ValueError):
            pid = int(noted.read_text())
            deadline = time.monotonic() + 1.0
            while proc.alive(pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            if not proc.alive(pid):
                noted.unlink()

    def _make_bridge(self) -> None:
        ip = need("ip", "iproute2")
        if subprocess.run([ip, "link", "show", self.bridge], capture_output=True, check=False).returncode == 0:
            return
        number = int(self.bridge[3:], 16)
        address = f"10.{200 + number % 50}.{number // 50 % 250}.1/24"
        made = ("link", "add", "name", self.bridge, "type", "bridge")
        for words in (made, ("addr", "add", address, "dev", self.bridge),
                      ("link", "set", self.bridge, "up")):  # fmt: skip
            subprocess.run([ip, *words], check=True, capture_output=True)

    def _kill_leftovers(self) -> None:
        """Of a killed engine its containerd goes on, and so do the containers below that."""
        mark = str(self.home).encode()
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and int(entry) != os.getpid():
                    line = Path(f"/proc/{entry}/cmdline").read_bytes()
                    if mark in line and (b"containerd" in line or b"docker-proxy" in line or b"dockerd" in line):
                        os.kill(int(entry), signal.SIGKILL)

    # What it is asked.

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        head = {"Host": "engine", "Connection": "close", "Content-Length": str(len(data))} | dict(headers or {})
        head |= {"Content-Type": "application/json"} if data else {}
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(60.0)
            line.connect(str(self.socket))
            # Of version 1.0, so that the answer comes in one piece.
            lines = [f"{method} {path} HTTP/1.0", *(f"{name}: {value}" for name, value in head.items())]
            line.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
            answer = b""
            while piece := line.recv(1 << 16):
                answer += piece
        first, _, content = answer.partition(b"\r\n\r\n")
        return int(first.split(b" ")[1]), content

    def json(self, path: str) -> Any:
        status, content = self.ask("GET", path)
        assert status == 200, content
        return json.loads(content)

    def containers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("/containers/json?all=1")
        return found

    def images(self) -> list[str]:
        return [tag for one in self.json("/images/json") for tag in one["RepoTags"] or ()]

    def remove_containers(self) -> None:
        for one in self.containers():
            self.ask("DELETE", f"/containers/{one['Id']}?force=1&v=1")

    def docker(self, *words: str, data: bytes | None = None, config: Path | None = None) -> str:
        """The command line of the same package."""
        environ = os.environ | {"DOCKER_HOST": self.host, "DOCKER_CONFIG": str(config or self.home / "config")}
        done = subprocess.run(
            [docker_program(), *words], input=data, env=environ, capture_output=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    # Images.

    def make_image(self, name: str, tree: Path, changes: Sequence[str] = ()) -> None:
        archive = self.home / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(tree, arcname=".")
        words = [word for change in changes for word in ("--change", change)]
        self.docker("import", *words, str(archive), name)
        archive.unlink()


def docker_program() -> str:
    need("dockerd", "docker.io")
    return "/usr/bin/docker"


def busybox_tree(tree: Path) -> Path:
    """A tree with a shell and no library at all: whatever starts in it brings its own."""
    for name in ("bin", "etc", "tmp", "srv/app", "usr/bin"):
        (tree / name).mkdir(parents=True)
    shutil.copy(need("busybox", "busybox-static"), tree / "bin/busybox")
    for name in APPLETS:
        (tree / "bin" / name).symlink_to("busybox")
    (tree / "etc/passwd").write_text(PASSWD)
    (tree / "etc/group").write_text(GROUP)
    os.chown(tree / "srv/app", 1234, 1235)
    (tree / "tmp").chmod(0o1777)
    return tree


def musl_tree(tree: Path) -> Path:
    """The same with another libc than ours, and nothing of ours."""
    busybox_tree(tree)
    (tree / "lib").mkdir()
    shutil.copy(need("/lib/ld-musl-x86_64.so.1", "musl"), tree / "lib/ld-musl-x86_64.so.1", follow_symlinks=True)
    return tree


def scratch_tree(tree: Path) -> Path:
    """One program, and neither a shell nor a user."""
    tree.mkdir(parents=True)
    shutil.copy(need("busybox", "busybox-static"), tree / "busybox")
    return tree


@contextmanager
def engine(home: Path, *, data: Path | None = None, live_restore: bool = False) -> Iterator[Engine]:
    home.mkdir(parents=True)
    made = Engine(home, data, live_restore=live_restore)
    try:
        made.start()
        yield made
    finally:
        made.clear()


def make_images(one: Engine, directory: Path) -> None:
    busybox = busybox_tree(directory / "busybox")
    one.make_image("busybox:latest", busybox)
    one.make_image(
        "own:latest", busybox,
        ["ENV PATH=/bin:/opt/bin", "ENV COLOUR=green", "ENV LD_PRELOAD=/nothing.so", "USER app", "WORKDIR /tmp",
         'ENTRYPOINT ["/bin/echo","entry"]', 'CMD ["point"]'],
    )  # fmt: skip
    one.make_image("musl:latest", musl_tree(directory / "musl"))
    one.make_image("scratch:latest", scratch_tree(directory / "scratch"))
    broken = busybox_tree(directory / "broken")
    # A file where a directory of ours is mounted.
    (broken / "stoker").write_text("")
    one.make_image("broken:latest", broken)


@dataclass
class Registry:
    """`docker-registry` with one user."""

    home: Path
    port: int
    process: "subprocess.Popen[bytes]"
    user: str = "me"
    password: str = "swordfish"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def push(self, one: Engine, name: str) -> str:
        """What it is called here."""
        there, config = f"{self.address}/team/{name}", one.home / "login"
        one.docker("login", "-u", self.user, "-p", self.password, self.address, config=config)
        one.docker("tag", name, there)
        one.docker("push", "-q", there, config=config)
        one.docker("rmi", there)
        return there


@contextmanager
def registry(home: Path) -> Iterator[Registry]:
    home.mkdir(parents=True)
    program, htpasswd = need("docker-registry", "docker-registry"), need("htpasswd", "apache2-utils")
    line = subprocess.run([htpasswd, "-nbB", "me", "swordfish"], capture_output=True, check=True).stdout
    (home / "htpasswd").write_bytes(line)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: {home / 'data'}}}}}\n"
        f"auth: {{htpasswd: {{realm: test, path: {home / 'htpasswd'}}}}}\n"
    )
    with open(home / "log", "ab") as log:
        process = subprocess.Popen([program, "serve", str(home / "config.yml")], stdout=log, stderr=log, cwd="/")
    try:
        deadline = time.monotonic() + START_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            assert process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < deadline, "no registry"
            time.sleep(0.02)
        yield Registry(home, port, process)
    finally:
        process.kill()
        process.wait(START_S)
        shutil.rmtree(home, ignore_errors=True)


def _mounts_below(place: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split(" ")[1].encode().decode("unicode_escape") for line in lines]
    return [point for point in points if point.startswith(f"{place}/")]
