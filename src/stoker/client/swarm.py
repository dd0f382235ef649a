"""`stoker.Client`: what scripts use. It needs no event loop, and no more memory for a million tasks than for one.

::

    import stoker

    client = stoker.Client()
    sweep = client.tasks.map(["python", "train.py", "--lr", "{}"], [0.1, 0.01, 0.001])
    sweep.wait()
    for result in sweep.results():
        print(result.id, result.exit_status, result.value)
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack
from uuid import uuid4

from stoker.client import client as http
from stoker.client import task as tasks
from stoker.client import task_watch as watch
from stoker.client.client import Json
from stoker.client.config import resolve
from stoker.client.fresh_ids import fresh_ids
from stoker.client.new_task import Command, Options, Template, new_task
from stoker.client.swarm_graph import Graph, Node
from stoker.client.swarm_result import FIELDS, Measure, Result, Statistics
from stoker.core.errors import UserError

__all__ = ["Batch", "Client", "Graph", "Measure", "Node", "Options", "Result", "Statistics", "Tasks"]

Progress = Callable[[Statistics], None]


class Client:
    """The server that `stoker config` shows, unless another is named. Not for several threads: each makes its own."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        project: str | None = None,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        place = None if home is None else os.fspath(home)
        self.http = http.Client.of(resolve(os.environ, home=place, url=url, token=token, project=project))
        self.tasks = Tasks(self.http)


class Tasks:
    """The swarm of a project."""

    def __init__(self, client: http.Client) -> None:
        self._client = client

    def submit(
        self,
        command: Command,
        *,
        after: Iterable[Node | str] = (),
        group: str | None = None,
        **options: Unpack[Options],
    ) -> "Batch":
        """One task: a list of a program and its arguments, or a line for the shell."""
        given = (after,) if isinstance(after, Node | str) else after
        ids = [one if isinstance(one, str) else one.id for one in given]
        created = tasks.add(self._client, new_task(command, options, after=ids, group=group), key=str(uuid4()))
        return Batch(self._client, 1, ids=(str(created["ids"][0]),))

    def map(
        self,
        command: str | Sequence[str],
        inputs: Iterable[object],
        *,
        after: Iterable[str] = (),
        group: str | None = None,
        **options: Unpack[Options],
    ) -> "Batch":
        """A task for each input, which stands for `{}` in the command (its number, from 1, for `{n}`).

        The inputs may be a generator of any length: they are sent as they come, in one request, and stored together.
        """
        template = Template(command, new_task(None, options, after=after))
        filled = (template.filled(str(one), number) for number, one in enumerate(inputs, start=1))
        return self.send(filled, group=group or made_up("map"))

    def graph(self, group: str | None = None) -> Graph:
        """Tasks that wait for each other, to be built and then sent as one."""
        return Graph(self, group or made_up("graph"))

    def send(self, described: Iterable[Mapping[str, Any]], *, group: str) -> "Batch":
        """Tasks as the API takes them, all of this group; they may be a generator of any length."""
        ids = fresh_ids()
        all_of_it = ({"id": next(ids)} | dict(one) | {"group": group} for one in described)
        created = tasks.add_many(self._client, all_of_it, key=str(uuid4()))
        return Batch(self._client, 0 if created is None else created["count"], group=group)

    def of(self, *ids: str, group: str | None = None, label: str | None = None) -> "Batch":
        """Tasks that were sent before: these, or those of a group, or those with a label (`key=value`); else all."""
        if sum(map(bool, (ids, group, label))) > 1:
            raise UserError("Name ids, or a group, or a label.")
        return Batch(self._client, None, ids=tuple(ids), group=group, label=label)

    def wait(
        self,
        *ids: str,
        group: str | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
    ) -> Statistics:
        return self.of(*ids, group=group, label=label).wait(timeout_s, progress)

    def results(self, *ids: str, group: str | None = None, label: str | None = None) -> Iterator[Result]:
        return self.of(*ids, group=group, label=label).results()

    def statistics(self, *ids: str, group: str | None = None, label: str | None = None) -> Statistics:
        return self.of(*ids, group=group, label=label).statistics()

    def cancel(self, *ids: str, group: str | None = None, label: str | None = None) -> int:
        return self.of(*ids, group=group, label=label).cancel()

    def retry(self, *ids: str, group: str | None = None, label: str | None = None) -> int:
        return self.of(*ids, group=group, label=label).retry()


@dataclass(frozen=True)
class Batch:
    """Tasks that were sent together, or are asked for together."""

    _client: http.Client
    count: int | None
    """How many were sent; None where it was not this script that sent them."""
    ids: tuple[str, ...] = ()
    group: str | None = None
    label: str | None = None

    def __repr__(self) -> str:
        return f"<tasks {self.group or self.label or ' '.join(self.ids) or 'of the project'}>"

    def wait(self, timeout_s: float | None = None, progress: Progress | None = None) -> Statistics:
        """Returns when nothing is left that will end by itself, or when the time is up: `ok` and `left` say which.

        `progress` is told how it stands, about once a second. A server that goes away meanwhile is waited for.
        """
        if self.count == 0:
            return Statistics(0, {}, 0, 0, 0, 0, 0, {}, 0.0, None)
        told = watch.wait(
            self._client,
            self._which,
            timeout_s=timeout_s,
            look_s=1.0 if progress else watch.LONG_POLL_S,
            seen=lambda seen: progress(Statistics.of(seen)) if progress else None,
            away=lambda error: None,
        )
        return Statistics.of(told)

    def results(self) -> Iterator[Result]:
        """Each task as it is now, in the order in which they were sent; a page at a time."""
        if self.ids:
            told: Iterator[Json] = (tasks.get(self._client, id) for id in self.ids)
        else:
            labels = [self.label] if self.label else []
            told = tasks.listed(self._client, fields=FIELDS, labels=labels, group=self.group, oldest=True)
        return (Result.of(one, self._client) for one in told)

    def statistics(self) -> Statistics:
        return Statistics.of(watch.statistics(self._client, self._which))

    def cancel(self) -> int:
        """How many this reached; those that run are told, and end a little later."""
        told = tasks.cancel(self._client, self._selection())
        return int(told["cancelled"]) + int(told["pending"])

    def retry(self) -> int:
        """Does again, as new tasks, what did not succeed; how many those are, and held ones that are let go."""
        told = tasks.retry(self._client, self._selection(), key=str(uuid4()))
        return int(told["count"]) + int(told["released"])

    @property
    def _which(self) -> watch.Which:
        return watch.Which(self.ids, self.group, self.label)

    def _selection(self) -> dict[str, object]:
        if self.ids:
            return {"ids": list(self.ids)}
        if self.label:
            key, _, value = self.label.partition("=")
            return {"labels": {key: value}}
        return {"group": self.group} if self.group else {"all": True}


def made_up(kind: str) -> str:
    """A name for a group that nobody else has."""
    return f"{kind}-{uuid4().hex[:8]}"
