"""Users, projects, members and tokens as rows."""

from uuid import UUID, uuid4

import pytest

from stoker.core.errors import NotFound
from stoker.core.ids import FleetId, ProjectId
from stoker.store import fleet, project, setting, token, user
from stoker.store.database import Connection
from stoker.store.project import Project
from stoker.store.token import NewToken, hash_of
from stoker.store.user import User
from tests.conftest import Databases


async def people(tx: Connection) -> tuple[User, Project]:
    ada, main = User(uuid4(), "ada", False, 1.0), Project(ProjectId(uuid4()), "main", 2.0)
    assert await user.insert(tx, ada)
    assert await project.insert(tx, main)
    await project.set_member(tx, main.id, ada.id, "user", 3.0)
    return ada, main


async def test_a_name_is_given_once(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        ada, main = await people(tx)
        assert not await user.insert(tx, ada._replace(id=uuid4()))
        assert not await project.insert(tx, main._replace(id=ProjectId(uuid4())))
        assert await user.get(tx, "ada") == ada
        assert await project.get(tx, "main") == main
        with pytest.raises(NotFound):
            await user.get(tx, "eve")


async def test_a_token_says_whose_it_is_and_what_it_opens(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        ada, main = await people(tx)
        await token.insert(tx, NewToken(uuid4(), ada.id, None, "laptop", hash_of("secret"), 1.0, 9.0))
        found = await token.find(tx, hash_of("secret"))
        assert found is not None
        assert (found.user, found.admin, found.expires_at) == ("ada", False, 9.0)
        assert found.roles == {"main": (main.id, "user")}
        assert await token.find(tx, hash_of("Secret")) is None
        await token.used(tx, {found.id: 5.0})
        await token.used(tx, {found.id: 4.0})
        (shown,) = await token.page(tx, ada.id, UUID(int=0), 10)
        assert shown.used_at == 5.0
        assert await tx.fetchval("SELECT count(*) FROM token WHERE encode(hash, 'escape') LIKE '%secret%'") == 0
        await project.set_member(tx, main.id, ada.id, "manager", 4.0)
        again = await token.find(tx, hash_of("secret"))
        assert again is not None
        assert again.roles == {"main": (main.id, "manager")}


async def test_with_a_user_go_their_tokens_and_memberships(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        ada, main = await people(tx)
        await token.insert(tx, NewToken(uuid4(), ada.id, None, "laptop", hash_of("secret"), 1.0, None))
        await user.delete(tx, ada.id)
        assert await token.find(tx, hash_of("secret")) is None
        assert await project.members(tx, main.id, "", 10) == []


async def test_a_deleted_project_frees_its_name_and_goes_when_it_is_empty(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        _, main = await people(tx)
        assert await project.delete(tx, main.id, 5.0)
        assert not await project.delete(tx, main.id, 6.0)
        with pytest.raises(NotFound):
            await project.get(tx, "main")
        assert await project.insert(tx, main._replace(id=ProjectId(uuid4())))
        assert await project.remove_empty(tx) == 1
        assert await project.remove_empty(tx) == 0


async def test_replicas_agree_on_the_first_proposal(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        assert await setting.agreed(tx, setting.SECRET, "mine") == "mine"
        assert await setting.agreed(tx, setting.SECRET, "yours") == "mine"
        assert await setting.get(tx, "other") is None


async def test_a_project_sees_its_own_fleets_and_those_for_all(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        _, main = await people(tx)
        other = Project(ProjectId(uuid4()), "other", 2.0)
        await project.insert(tx, other)
        shared = await fleet.ensure(tx, FleetId(UUID(int=1)), "local", None, '{"n": 1}', 1.0)
        own = await fleet.ensure(tx, FleetId(UUID(int=2)), "gpus", main.id, "{}", 1.0)
        assert await fleet.ensure(tx, FleetId(UUID(int=3)), "local", None, '{"n": 2}', 1.0) == shared
        assert [one.id for one in await fleet.page(tx, main.id, UUID(int=0), 10)] == [shared, own]
        assert [one.id for one in await fleet.page(tx, other.id, UUID(int=0), 10)] == [shared]
        found = await fleet.get(tx, main.id, "local")
        assert found is not None
        assert found.spec == '{"n": 2}'
        assert await fleet.get(tx, other.id, "gpus") is None
