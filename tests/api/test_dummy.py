"""Who may see and steer the dummy backend."""

from tests.api.conftest import Apis


async def test_only_admins_of_the_server_see_and_steer_it(api: Apis) -> None:
    async with api() as one:
        manager = await one.user("ada", "manager")
        for method, path in (
            ("GET", "/api/dummy/offers"), ("GET", "/api/dummy/machines"), ("DELETE", "/api/dummy/changes"),
            ("PATCH", "/api/dummy/offers/small"), ("POST", "/api/dummy/machines/x/vanish"),
        ):  # fmt: skip
            answer = await manager.ask(method, path, {} if method in ("PATCH", "POST") else None)
            assert answer.status == 403, (method, path)
        # This server was made without one.
        assert (await one.admin.get("/api/dummy/offers")).status == 404
