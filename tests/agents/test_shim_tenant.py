"""Whom jobs run as: a user of their project when the shim is root, and the shim's own otherwise, for one project."""

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from stoker.core.errors import Conflict, UserError
from stoker.shim.home import Home
from stoker.shim.ledger import Ledger
from stoker.shim.tenant import FIRST_UID, Tenant, Tenants
from stoker.wire.shim import TaskInfo
from tests.agents.shim_stage import PROJECT, Stage, stage
from tests.machine import as_root

NOBODY = 65534

UNPRIVILEGED = f"""
import ctypes, os, sys
from pathlib import Path
import pynvml, stoker.runner.fork, stoker.shim.main, stoker.shim.start
home = Path(sys.argv[1])
if os.geteuid() == 0:
    os.chown(home, {NOBODY}, {NOBODY})
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
    # Without this /proc/self belongs to root, as after any change of user without exec.
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    sys.exit(stoker.runner.fork.main(["--socket", str(home / "fork.sock")]))
stoker.shim.start.serve(home, [])
"""
"""A shim without root, also when the tests have it. Its fork server is here already, since another user may not be
allowed to start this Python."""


async def output(shim: Stage, task: TaskInfo, *commands: str) -> list[str]:
    await shim.run(task, *commands)
    await shim.reaches(task.id, lambda task: task.result)
    told = await shim.ask("GET", f"/tasks/{task.id}/log")
    return [line for line in told.body.decode(errors="replace").split("\n") if line]


@as_root
async def test_each_project_has_a_user_of_its_own(shared_directory: Path) -> None:
    """They cannot read each other's files, nor the shim's; and the numbers stay over a restart."""
    async with stage(shared_directory) as shim:
        mine, other = uuid4(), uuid4()
        first = await shim.submit(project_id=str(mine))
        second = await shim.submit(project_id=str(other))
        owners = [(shim.directory(task.id) / "work").stat().st_uid for task in (first, second)]
        assert owners[0] != owners[1]
        assert min(owners) >= FIRST_UID
        await shim.run(first, "umask 077; echo private > note; sleep 1000")
        work = shim.directory(first.id) / "work"
        seen = await output(
            shim,
            second,
            "id -u; id -G; pwd",
            f"cat {work}/note {shim.home}/token {shim.directory(first.id)}/task.jsonl && echo leak",
            f"ls {shim.home} {shim.home}/tasks && echo leak",
            f"kill -9 {await shim.born(first.id)} && echo leak",
            "touch ~/mine && echo written",
        )
        text = "\n".join(seen)
        assert "leak" not in text
        assert "private" not in text
        for expected in (str(owners[1]), str(shim.directory(second.id) / "work"), "written"):
            assert expected in text
        await shim.restart()
        third = await shim.submit(project_id=str(mine))
        assert (shim.directory(third.id) / "work").stat().st_uid == owners[0]


async def test_without_root_there_is_one_project(shared_directory: Path) -> None:
    """The first that comes, also after a restart."""
    async with stage(shared_directory, UNPRIVILEGED) as shim:
        await shim.fork_server_ready()
        assert (await shim.ask("GET", "/host")).json["project_id"] is None, "nobody has come yet"
        task = await shim.submit()
        assert task.state == "running", task
        lines = await output(shim, task, "id -u", "mkdir -p closed/inner && touch closed/inner/file && chmod 0 closed")
        assert str(shim.home.stat().st_uid) in "".join(lines)
        told = await shim.ask("POST", "/tasks", json=shim.order(project_id=str(uuid4())))
        assert told.error == (409, "one_project")
        seen = (await shim.ask("GET", "/host")).json
        assert (seen["root"], seen["project_id"]) == (False, str(PROJECT))
        ended = await shim.terminate(task.id)
        assert ended.cleanup_error == ""
        assert (await shim.remove(task.id)).status == 204
        assert not shim.directory(task.id).exists(), "also what the job had closed to itself"
        await shim.restart()
        told = await shim.ask("POST", "/tasks", json=shim.order(project_id=str(uuid4())))
        assert told.error == (409, "one_project")
        assert (shim.home.stat().st_mode & 0o777) == 0o700


def test_numbers_are_never_given_twice(tmp_path: Path) -> None:
    """Also when a crash cut the last line short, and also when the home was used without root before."""
    ledger = Ledger(tmp_path / "projects")
    alone = Tenants(ledger, is_root=False)
    assert alone.admit(UUID(int=1)) == Tenant(None, None)
    with pytest.raises(Conflict):
        alone.admit(UUID(int=2))
    tenants = Tenants(ledger, is_root=True)
    given = [tenants.admit(UUID(int=number)).uid for number in (1, 2, 3)]
    assert len(set(given)) == 3
    assert all(uid is not None and uid >= FIRST_UID for uid in given)
    with open(tmp_path / "projects", "a") as file:
        file.write(f"{UUID(int=4)} 2")
    again = Tenants(ledger, is_root=True)
    assert [again.admit(UUID(int=number)).uid for number in (1, 2, 3)] == given
    fourth = again.admit(UUID(int=4)).uid
    assert fourth not in given
    assert fourth == Tenants(ledger, is_root=True).admit(UUID(int=4)).uid


@as_root
def test_a_home_that_jobs_cannot_pass_through_is_refused_at_once(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UserError, match="cannot pass through"):
        Home(closed / "shim").prepare()
