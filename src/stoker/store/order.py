"""What a performer has to know of a job before it gives orders about it."""

import json
from typing import NamedTuple
from uuid import UUID

from stoker.core.errors import NotFound
from stoker.core.ids import InstanceId, JobId
from stoker.store.database import Connection

PLACE = "SELECT instance_id FROM job WHERE id = $1"

BRIEF = """
SELECT job.run_id, run.name, run.project_id, project.name, job.attempt, job.replica, job.node, job.blocks,
       job.instance_id, instance.capacity, instance.blocks, run.policy, run.resources, run_spec.configuration,
       coalesce(host.ip, '127.0.0.1')
FROM job
JOIN instance ON instance.id = job.instance_id
LEFT JOIN host ON host.instance_id = job.instance_id
JOIN run ON run.id = job.run_id
JOIN run_spec ON run_spec.run_id = run.id
JOIN project ON project.id = run.project_id
WHERE job.id = $1
"""

VOLUMES = """
SELECT job.instance_id, run.policy -> 'volumes' AS volumes FROM job JOIN run ON run.id = job.run_id WHERE job.id = $1
"""

PEERS = """
SELECT job.node, host.ip, instance.capacity, instance.blocks AS total, job.blocks
FROM job
JOIN instance ON instance.id = job.instance_id
JOIN host ON host.instance_id = job.instance_id
WHERE job.run_id = $1 AND job.replica = $2 AND job.attempt = $3
ORDER BY job.node
"""
"""The nodes of one try of a replica whose machines are there."""


class Peer(NamedTuple):
    node: int
    ip: str
    capacity: str
    total: int
    blocks: list[int]


class Brief(NamedTuple):
    run_id: UUID
    run_name: str
    project_id: UUID
    project: str
    attempt: int
    replica: int
    node: int
    blocks: list[int]
    instance_id: UUID
    capacity: str
    total: int
    """How many blocks the instance has in all."""
    policy: str
    resources: str
    configuration: str
    ip: str


class Holding(NamedTuple):
    instance_id: InstanceId | None
    volumes: list[UUID]


async def volumes(tx: Connection, job_id: JobId) -> Holding | None:
    row = await tx.fetchrow(VOLUMES, job_id)
    return None if row is None else Holding(row["instance_id"], list(map(UUID, json.loads(row["volumes"] or "[]"))))


async def place(tx: Connection, job_id: JobId) -> InstanceId:
    instance_id: UUID | None = await tx.fetchval(PLACE, job_id)
    if instance_id is None:
        raise NotFound(f"Job {job_id} is on no instance.")
    return InstanceId(instance_id)


async def peers(tx: Connection, brief: Brief) -> list[Peer]:
    """With itself, by rank."""
    return [Peer(*row) for row in await tx.fetch(PEERS, brief.run_id, brief.replica, brief.attempt)]


async def brief(tx: Connection, job_id: JobId) -> Brief:
    row = await tx.fetchrow(BRIEF, job_id)
    if row is None:
        raise NotFound(f"There is no job {job_id}, or it is on no instance.")
    return Brief(*row)
