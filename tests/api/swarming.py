"""What the tests of the swarm's API share: tasks, and a worker that says what it is told to say."""

import itertools
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.api.conftest import Api, Client, Json

TASKS = "/api/projects/main/tasks"
WORKERS = "/api/projects/main/workers"


async def submit(client: Client, *tasks: Json, **fields: Any) -> list[str]:
    """The ids of these tasks; without any, one that runs `true`."""
    body = {"tasks": list(tasks)} if tasks else {"command": ["true"], **fields}
    made = await client.made(TASKS, body)
    ids: list[str] = made["ids"]
    return ids


async def one(client: Client, **fields: Any) -> str:
    (id,) = await submit(client, **fields)
    return id


async def state_of(client: Client, id: str) -> str:
    answer = await client.get(f"{TASKS}/{id}")
    assert answer.status == 200, answer.body
    state: str = answer.body["state"]
    return state


@dataclass
class Worker:
    client: Client
    id: str
    cpus: float
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def path(self) -> str:
        return f"{WORKERS}/{self.id}"

    def claiming(self, most: int = 100, **fields: Any) -> Json:
        room = {"amounts": {"cpus": self.cpus, "memory": 100_000}}
        return {"number": next(self.numbers), "most": most, "room": room, **fields}

    async def claim(self, most: int = 100, **fields: Any) -> list[Json]:
        answer = await self.client.post(f"{self.path}/claim", self.claiming(most, **fields))
        assert answer.status == 200, answer.body
        tasks: list[Json] = answer.body["tasks"]
        return tasks

    async def report(self, **fields: Any) -> Json:
        answer = await self.client.post(f"{self.path}/report", fields)
        assert answer.status == 200, answer.body
        return answer.body

    async def end(self, *works: Json, exit_status: int | None = 0, **fields: Any) -> Json:
        ended = [{**held(work), "exit_status": exit_status, "ran_s": 0.5, **fields} for work in works]
        return await self.report(ended=ended)

    async def beat(self, *works: Json, number: int = 0) -> Json:
        answer = await self.client.post(f"{self.path}/heartbeat", {"held": list(map(held, works)), "number": number})
        assert answer.status == 200, answer.body
        return answer.body

    async def patch(self, id: str, body: Json) -> Any:
        return await self.client.ask("PATCH", f"{TASKS}/{id}", body, headers={"Stoker-Worker": self.id})


def held(work: Json) -> Json:
    return {"id": work["id"], "attempt": work["attempt"]}


async def worker(api: Api, cpus: float = 1000, **fields: Any) -> Worker:
    return await registered(api.admin, cpus, **fields)


async def registered(member: Client, cpus: float = 1000, **fields: Any) -> Worker:
    total = {"amounts": {"cpus": cpus, "memory": 100_000}}
    body = {"id": str(uuid4()), "name": "w", "total": total, **fields}
    made = await member.made(WORKERS, body)
    return Worker(member.speaking_as(made["token"]), made["id"], cpus)
