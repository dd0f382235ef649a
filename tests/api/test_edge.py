"""Bad input gets a clear answer, and nothing of the inside gets out."""

import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from stoker.core.errors import Broken, Unavailable
from stoker.core.limits import MOST_BODY_BYTES
from tests.api.conftest import Apis, task

RUNS = "/api/projects/main/runs"


async def test_a_body_over_the_limit_is_refused_whether_it_is_announced_or_not(api: Apis) -> None:
    async with api() as a:
        large = json.dumps({"configuration": task("x" * 60_000)}).encode() + b" " * MOST_BODY_BYTES
        headers = {"Content-Type": "application/json"}
        announced = await a.admin.post(RUNS, data=large, headers=headers)
        assert (announced.status, announced.code) == (413, "too_large")

        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(large), 65_536):
                yield large[start : start + 65_536]

        chunked = await a.admin.post(RUNS, data=chunks(), headers=headers)
        assert (chunked.status, chunked.code) == (413, "too_large")
        assert (await a.admin.get(RUNS)).body["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 200_000,
        b'{"configuration": ' + b'{"a":' * 50_000,
        b'{"configuration": ' + b"1" * 10_000 + b"}",
        b"\xff\xfe",
        b'{"configuration": null}',
        b'{"configuration": "type: task"}',
        b'{"configuration": {"type": "task", "commands": ["a\\u0000b"]}}',
        b'{"configuration": {"type": "task", "commands": ["\\ud800"]}}',
        b'{"configuration": {"type": "task", "commands": ["x"], "env": {"A": "\\ud800"}}}',
        b'{"configuration": {"type": "task", "commands": ["x"], "env": {"A": null}}}',
        b'{"configuration": {"type": "task", "commands": ["x"], "resources": {"cpu": NaN}}}',
        b'{"configuration": {"type": "task", "commands": ["x"], "resources": {"named": {"x": 1e400}}}}',
        b'{"configuration": {"type": "task", "commands": ["x"], "priority": 1e400}}',
        b'{"configuration": {"type": "task", "commands": ["x"], "max_duration": Infinity}}',
        b'{"configuration": {"type": "task", "commands": ["x"], "\\ud800": 1}}',
    ],
)
async def test_a_body_that_is_none_is_a_mistake_of_the_client(api: Apis, body: bytes) -> None:
    async with api() as a:
        answer = await a.admin.post(RUNS, data=body, headers={"Content-Type": "application/json"})
        assert answer.status in (400, 422), answer.body
        assert answer.body["error"]["message"]
        assert "Traceback" not in str(answer.body)
        assert (await a.admin.get(RUNS)).body["items"] == []


async def test_a_wrong_key_names_the_nearest(api: Apis) -> None:
    async with api() as a:
        answer = await a.admin.post(RUNS, {"configuration": {"type": "task", "comands": ["x"]}})
        (problem,) = answer.body["error"]["problems"]
        assert (answer.status, problem["key"]) == (422, "configuration.comands")
        assert problem["hint"] == "Did you mean commands?"
        above = await a.admin.post(RUNS, {"configuratio": {}})
        assert above.body["error"]["problems"][0]["hint"] == "Did you mean configuration?"


async def test_what_is_nowhere_and_what_is_not_for_this_method_are_errors_like_all_others(api: Apis) -> None:
    async with api() as a:
        assert (await a.admin.get("/api/nothing")).code == "not_found"
        assert (await a.admin.ask("PUT", RUNS)).code == "method_not_allowed"
        assert (await a.admin.get("/")).code == "not_found"


async def test_a_mistake_of_ours_is_told_without_its_inside(api: Apis) -> None:
    async with api() as a:

        async def break_down(*_: object) -> None:
            raise Broken("the password is hunter2")

        a.context.engine.commit = break_down  # type: ignore[assignment,method-assign]
        with capture_logs() as logged:
            answer = await a.admin.post(RUNS, {"configuration": task()})
        assert (answer.status, answer.code) == (500, "internal")
        assert "hunter2" not in str(answer.body)
        (entry,) = [one for one in logged if one["event"] == "request broke"]
        assert entry["id"] in answer.body["error"]["hint"]


async def test_what_is_not_possible_now_says_when_to_come_back(api: Apis) -> None:
    async with api() as a:

        async def busy(*_: object) -> None:
            raise Unavailable("Too much is waiting.", code="overloaded", retry_after_s=3.0)

        async def away(*_: object) -> None:
            raise Unavailable("The database is away.", retry_after_s=0.2)

        for act, status, after in ((busy, 429, "3"), (away, 503, "1")):
            a.context.engine.commit = act  # type: ignore[assignment,method-assign]
            answer = await a.admin.post(RUNS, {"configuration": task()})
            assert (answer.status, answer.headers["Retry-After"]) == (status, after)


async def test_health_and_metrics_need_no_token(api: Apis) -> None:
    async with api() as a:
        nobody = a.admin.speaking_as("")
        assert (await nobody.get("/healthz/live")).body["status"] == "ok"
        assert (await nobody.get("/healthz/ready")).body["status"] == "ok"
        await a.admin.made(RUNS, {"configuration": task()})
        page = (await nobody.get("/metrics")).body.decode()
        assert 'stoker_runs{status="SUBMITTED"} 1.0' in page
        assert 'stoker_requests_total{method="POST",route="submit_runs",status="201"} 1.0' in page
        a.context.stop()
        assert (await nobody.get("/healthz/ready")).status == 503
        assert (await nobody.get("/healthz/live")).status == 200
