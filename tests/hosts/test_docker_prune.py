"""Images that we pulled go when nobody needs them; the engine is asked, and never forced."""

import asyncio
import os
from pathlib import Path
from uuid import UUID

import pytest

from stoker.shim.engine import Engine as Client
from stoker.shim.ledger import Ledger
from stoker.shim.limits import IMAGE_UNUSED_S
from stoker.shim.prune import Images
from tests.hosts import engine as engines
from tests.hosts.engine import Engine, scratch_tree
from tests.machine import as_root, fill, small_disk

pytestmark = [pytest.mark.xdist_group("docker"), as_root]


async def test_only_what_is_old_and_ours_and_in_no_use(engine: Engine, tmp_path: Path) -> None:
    ids = {}
    for name in ("old", "held", "named", "contained", "theirs"):
        tree = scratch_tree(tmp_path / name)
        (tree / name).touch()
        engine.make_image(f"prune/{name}:latest", tree)
        ids[name] = engine.json(f"/images/prune%2F{name}:latest/json")["Id"]
    engine.docker("create", "--name", "prune", "prune/contained", "/busybox")
    now, client, ledger = 1000.0, Client(engine.socket), Ledger(tmp_path / "images")
    images = Images(client, ledger, lambda: now)
    try:
        for name in ("old", "held", "named", "contained"):
            images.pulled(ids[name])
        images.used(UUID(int=1), ids["held"])
        images.names = lambda: ["prune/named"]
        assert await images.prune() == []
        now += IMAGE_UNUSED_S + 1
        images = Images(client, ledger, lambda: now)
        images.used(UUID(int=1), ids["held"])
        images.names = lambda: ["prune/named"]
        assert await images.prune() == [ids["old"]], "also by a shim that was started anew"
        left = {tag for tag in engine.images() if tag.startswith("prune/")}
        assert left == {f"prune/{name}:latest" for name in ("held", "named", "contained", "theirs")}
        images.left(UUID(int=1))
        images.names = tuple
        await asyncio.to_thread(engine.docker, "rm", "prune")
        now += 2 * IMAGE_UNUSED_S
        assert set(await images.prune()) == {ids[name] for name in ("held", "named", "contained")}
        assert [tag for tag in engine.images() if tag.startswith("prune/")] == ["prune/theirs:latest"]
        assert ledger.read() == []
    finally:
        await client.close()
        engine.ask("DELETE", "/containers/prune?force=1")
        for name in ids:
            engine.ask("DELETE", f"/images/prune%2F{name}?force=1")


async def test_with_little_room_the_one_that_was_not_used_for_longest_goes(
    shared_directory: Path, tmp_path: Path
) -> None:
    """A disk of the images' own. What a task holds stays, whatever room there is; what fits again is kept."""
    with (
        small_disk(shared_directory / "narrow", 400) as disk,
        engines.engine(shared_directory / "narrow-engine", data=disk) as engine,
    ):
        ids = {}
        for name in ("held", "old", "new"):
            tree = scratch_tree(tmp_path / name)
            (tree / "noise").write_bytes(os.urandom(48 << 20))
            engine.make_image(f"prune/{name}:latest", tree)
            ids[name] = engine.json(f"/images/prune%2F{name}:latest/json")["Id"]
        now, client = 1000.0, Client(engine.socket)
        images = Images(client, Ledger(tmp_path / "images"), lambda: now)
        try:
            for name in ("held", "old", "new"):
                images.pulled(ids[name])
                now += 1.0
            images.used(UUID(int=1), ids["held"])
            assert await images.prune() == [], "there is room"
            fill(disk / "ballast", 10 << 20)
            assert await images.prune() == [ids["old"]]
            fill(disk / "ballast", 10 << 20)
            assert await images.prune() == [ids["new"]]
            fill(disk / "ballast", 10 << 20)
            assert await images.prune() == [], "what is left is in use"
            assert [tag for tag in engine.images() if tag.startswith("prune/")] == ["prune/held:latest"]
        finally:
            await client.close()
