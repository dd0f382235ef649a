"""Users, projects, members and tokens as rows."""

from uuid import UUID, uuid4

import pytest

from stoker.core.errors import NotFound
from stoker.core.fleet import Fleet
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
        auto, four = Fleet(blocks="auto"), Fleet(blocks=4)
        shared, _ = await fleet.ensure(tx, FleetId(UUID(int=1)), "local", None, '{"n": 1}', auto, 1.0)
        own, _ = await fleet.ensure(tx, FleetId(UUID(int=2)), "gpus", main.id, '{"tags": {"team": "a"}}', four, 1.0)
        again = await fleet.ensure(tx, FleetId(UUID(int=3)), "local", None, '{"n": 2}', four, 1.0)
        assert again == (shared, auto), "what is there stays as it is"
        first = UUID(int=0)
        assert [one.id for one in await fleet.page(tx, main.id, 2.0, first, 10)] == [shared, own]
        assert [one.id for one in await fleet.page(tx, main.id, 2.0, first, 10, {"team": "a"})] == [own]
        assert await fleet.page(tx, main.id, 2.0, first, 10, {"team": "b"}) == []
        assert [one.id for one in await fleet.page(tx, other.id, 2.0, first, 10)] == [shared]
        found = await fleet.get(tx, main.id, 2.0, "local")
        assert found is not None
        assert found.spec == '{"n": 1}'
        assert await fleet.get(tx, other.id, 2.0, "gpus") is None


async def test_a_fleet_changes_from_the_version_that_was_seen(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        id = FleetId(UUID(int=1))
        await fleet.insert(tx, id, "cloud", None, "{}", Fleet(), 1.0)
        assert not await fleet.insert(tx, FleetId(UUID(int=2)), "cloud", None, "{}", Fleet(), 1.0)
        assert await fleet.change(tx, id, 0, "{}", Fleet(1, 2)) == 1
        assert await fleet.change(tx, id, 0, "{}", Fleet(1, 9)) is None
        assert [one.policy for one in await fleet.standing(tx)] == [Fleet(1, 2)]


async def test_a_deleted_fleet_leaves_its_name(database: Databases) -> None:
    """Its row stays, since its machines are in the history of a project: nobody else sees them."""
    async with database() as db, db.connection() as tx:
        _, main = await people(tx)
        await fleet.insert(tx, FleetId(UUID(int=1)), "cloud", main.id, "{}", Fleet(deleting=True), 1.0)
        await fleet.insert(tx, FleetId(UUID(int=2)), "other", main.id, "{}", Fleet(), 1.0)
        assert await fleet.names(tx, main.id) == ["other"]
        assert await fleet.bury(tx, 2.0) == [UUID(int=1)]
        assert await fleet.bury(tx, 3.0) == []
        assert [one.name for one in await fleet.standing(tx)] == ["other"]
        assert await fleet.insert(tx, FleetId(UUID(int=3)), "cloud", main.id, "{}", Fleet(), 4.0)
