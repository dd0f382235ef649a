"""What the guide shows is what happens: its files are written, its commands run, and their output compared."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Real
from tests.guide.page import Command, File, agrees, steps
from tests.hosts import engine as engines
from tests.hosts.engine import Engine
from tests.hosts.land import land

PAGES = sorted((ROOT / "docs" / "guide").glob("[0-9]*.md"))
PATIENCE_S = 120.0
EXAMPLE = "192.0.2."
"""Addresses that are nobody's, in place of those of hosts."""
REGISTRY = "registry.example.org"
"""A name that is nobody's, in place of a registry with a password. Whoever reads of it has a container engine."""

pytestmark = pytest.mark.xdist_group("guide")


@pytest.fixture(scope="module")
def real(shared_directory: Path) -> Iterator[Real]:
    """A server of the guide's own: its fleets are nobody else's, and it has the machines of `backends.yml`."""
    server = Real(shared_directory / "guide-server")
    server.home.mkdir(mode=0o711)
    # Nobody listens there until a page needs it.
    server.env["DOCKER_HOST"] = Engine(shared_directory / "guide-engine").host
    (server.home / "backends.yml").write_text((ROOT / "docs" / "guide" / "backends.yml").read_text())
    server.up()
    yield server
    server.clear()


@pytest.fixture
def place(shared_directory: Path, page: Path) -> Path:
    """Where a reader would sit: a directory of one's own, with `stoker` on the path."""
    made = shared_directory / "guide" / page.stem
    (made / "bin").mkdir(parents=True)
    program = made / "bin" / "stoker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m stoker.cli.main "$@"\n')
    program.chmod(0o755)
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_guide_tells_the_truth(page: Path, place: Path, real: Real, shared_directory: Path) -> None:
    env = {**real.env, "PATH": f"{place / 'bin'}:{real.env['PATH']}", "COLUMNS": "160"}
    if REGISTRY in page.read_text():
        with machine_with_engine(real, shared_directory) as registry:
            follow([step.with_(REGISTRY, registry) for step in steps(page)], page, place, env)
        return
    if EXAMPLE not in page.read_text():
        follow(steps(page), page, place, env)
        return
    with land() as ground:
        # Who reads it has a key, and hosts that it opens.
        ground.host()
        ground.host()
        (place / ".ssh").mkdir()
        (place / ".ssh" / "id_ed25519").write_text(ground.key.read_text())
        network = f"{ground.network}."
        follow([step.with_(EXAMPLE, network) for step in steps(page)], page, place, {**env, "HOME": str(place)})


@contextmanager
def machine_with_engine(real: Real, shared_directory: Path) -> Iterator[str]:
    """With the images that the page names, for a test pulls nothing from elsewhere. Yields a registry's address."""
    if os.geteuid() != 0:
        pytest.skip("needs root: only an agent that is root uses a container engine")
    with (
        engines.engine(shared_directory / "guide-engine") as engine,
        engines.registry(shared_directory / "guide-registry") as registry,
    ):
        trees = shared_directory / "guide-trees"
        engine.make_image("busybox:latest", engines.busybox_tree(trees / "busybox"))
        engine.make_image("scratch-with-busybox:latest", engines.scratch_tree(trees / "scratch"))
        registry.push(engine, "busybox")
        deadline = time.monotonic() + PATIENCE_S
        while b'"docker": true' not in (told := real("instances", "--json").stdout):
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
        yield registry.address


def follow(said: Sequence[File | Command], page: Path, place: Path, env: Mapping[str, str]) -> None:
    taken = 0
    for step in said:
        match step:
            case File(name, text):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_text(text)
            case Command(line, exit_code, expected):
                told = subprocess.run(
                    ["bash", "-c", line], cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, timeout=PATIENCE_S,
                )  # fmt: skip
                printed = told.stdout.decode(errors="replace")
                assert told.returncode == exit_code, f"$ {line}\nexit code {told.returncode}\n{printed}"
                shown = "\n".join(expected)
                assert agrees(expected, printed), f"$ {line}\nprinted:\n{printed}\nthe page shows:\n{shown}"
                taken += 1
    assert taken, f"{page.name} shows no command"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (("one", "two"), "one\ntwo\n", True),
        (("one",), "one\ntwo\n", False),
        (("one", "…"), "one\ntwo\nthree\n", True),
        (("…", "three"), "one\ntwo\nthree\n", True),
        (("NAME  STATUS", "train … DONE"), "NAME    STATUS\ntrain   3 s   DONE\n", True),
        (("train … DONE",), "train   3 s   FAILED\n", False),
        ((), "anything\n", False),
    ],
)
def test_a_page_that_lies_is_found(shown: tuple[str, ...], printed: str, same: bool) -> None:
    assert agrees(shown, printed) is same
