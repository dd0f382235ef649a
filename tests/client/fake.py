"""A swarm that does as a test says. It takes and answers what the models of the wire do, so a client that gets on with
it speaks the same language as the server; what that does with tasks is tested with the real one."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from pydantic import ValidationError

from stoker.core.ids import uuid7
from stoker.wire.task import NewTask, Selection, Statistics, Task
from stoker.wire.worker import Worker

TOKEN = "token-of-a-test"
BEGAN = datetime(2026, 5, 1, 12, tzinfo=UTC)
MOST_IDS = 1000


class Swarm:
    """Tasks by id. Nothing happens to them but what a test does with `end`, `start` and the like."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.logs: dict[tuple[str, int, str], bytes] = {}
        """Of a task, an attempt and a stream."""
        self.workers: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str, Any]] = []
        """Method, path with query, and body; of lines, how many."""
        self.keys: list[str] = []
        self.types: list[str] = []
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        """Given instead of the next answers."""
        self.changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"swarm": self}))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator["Swarm"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def add(self, *described: dict[str, Any], **said: Any) -> list[str]:
        """As the server does: all or none, and with their edges."""
        with self.changed:
            wanted = [NewTask.model_validate(one) for one in described]
            ids = {one.ref: str(one.id or self._new_id(place)) for place, one in enumerate(wanted) if one.ref}
            made = []
            for place, one in enumerate(wanted):
                id = ids.get(one.ref or "") or str(one.id or self._new_id(place))
                before = [ids.get(ref, ref) for ref in one.depends_on]
                kept = one.model_dump(mode="json", exclude={"ref", "state", "id", "depends_on", "concurrency_limit"})
                kept |= {"id": id, "depends_on": before, "created_at": BEGAN, "entered_at": BEGAN}
                state = {"state": "inactive" if before else "available", "pending_dependency_count": len(before)}
                self.tasks[id] = Task.model_validate(kept | state | said).model_dump(mode="json")
                for other in before:
                    self.tasks[other]["continuations"].append(id)
                made.append(id)
            self.changed.notify_all()
            return made

    def _new_id(self, place: int) -> UUID:
        return uuid7(BEGAN.timestamp(), (len(self.tasks) + place) << 48)

    def start(self, id: str, attempt: int = 1) -> None:
        with self.changed:
            info: dict[str, Any] = {
                "attempt": attempt,
                "worker": None,
                "claimed_at": "2026-05-01T12:00:00Z",
                "outcome": None,
            }
            info |= {"time_started": "2026-05-01T12:00:00Z", "time_terminated": None, "exit_status": None}
            info |= {"message": "", "result": None, "memory_usage": {"at": [], "values": []}}
            self.history.setdefault(id, []).append(info)
            self.tasks[id] |= {"state": "running", "retry_count": attempt, "execution_info": info}
            self.changed.notify_all()

    def end(self, id: str, exit_status: int = 0, *, result: str | None = None, state: str = "terminated") -> None:
        with self.changed:
            if not self.history.get(id):
                self.start(id)
            ended = {"exit_status": exit_status, "outcome": "ended", "time_terminated": "2026-05-01T12:00:03Z"}
            self.history[id][-1].update(ended, result=result)
            self.tasks[id] |= {"state": state, "exit_status": exit_status}
            self.changed.notify_all()

    def write(self, id: str, data: bytes, *, attempt: int = 1, stream: str = "stdout") -> None:
        with self.changed:
            self.logs[id, attempt, stream] = self.logs.get((id, attempt, stream), b"") + data

    def statistics(self, tasks: list[dict[str, Any]]) -> dict[str, Any]:
        ended = [task for task in tasks if task["state"] == "terminated"]
        good = [task for task in ended if task["exit_status"] in (0, None)]
        told = Statistics(
            total=len(tasks),
            states=dict(Counter(task["state"] for task in tasks)),
            succeeded=len(good),
            failed=len(ended) - len(good),
            held=sum(bool(task["held"]) for task in tasks),
            exit_codes=dict(Counter(task["exit_status"] for task in ended if task["exit_status"] is not None)),
            throughput=2.5 if ended else 0.0,
            seconds_left=(len(tasks) - len(ended)) / 2.5 if ended else None,
        )
        return told.model_dump(mode="json")


class Handler(BaseHTTPRequestHandler):
    swarm: Swarm
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._take("GET")

    def do_POST(self) -> None:
        self._take("POST")

    def _take(self, method: str) -> None:
        swarm = self.swarm
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        lines = self.headers.get("Content-Type") == "application/x-ndjson"
        body = [json.loads(line) for line in raw.splitlines() if line] if lines else json.loads(raw or b"{}")
        swarm.asked.append((method, self.path, body))
        swarm.types.append(self.headers.get("Content-Type") or "")
        if key := self.headers.get("Idempotency-Key"):
            swarm.keys.append(key)
        parts = urlsplit(self.path)
        if swarm.answers:
            status, headers, told = swarm.answers.pop(0)
            return self._answer(status, told, headers)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(401, "unauthorized", "The token is wrong.")
        path = parts.path.removeprefix("/api/projects/main/").split("/")
        with swarm.changed:
            return self._project(method, path, parse_qs(parts.query), body)

    def _project(self, method: str, path: list[str], query: dict[str, list[str]], body: Any) -> None:
        swarm = self.swarm
        match method, path:
            case "POST", ["tasks"]:
                return self._created(body if isinstance(body, list) else body.get("tasks", [body]))
            case "GET", ["tasks"]:
                return self._listed(query)
            case "GET", ["tasks", "statistics"]:
                return self._answer(200, swarm.statistics(self._meant(query)))
            case "GET", ["tasks", "wait"]:
                return self._wait(query)
            case "POST", ["tasks", "cancel"]:
                return self._cancel(body)
            case "POST", ["tasks", "retry"]:
                chosen = [task for task in self._selected(body) if task["exit_status"] not in (0, None)]
                again = {task["id"]: str(uuid7(0, place)) for place, task in enumerate(chosen)}
                return self._answer(200, {"ids": again, "count": len(again), "released": 0})
            case "GET", ["workers"]:
                shown = [one for one in swarm.workers if "all" in query or one["state"] == "active"]
                return self._answer(200, {"items": shown, "next_cursor": None})
            case "GET", ["workers", id]:
                return self._answer(200, next(one for one in swarm.workers if one["id"] == id))
        if path[1] not in swarm.tasks:
            return self._refuse(404, "not_found", f"There is no task {path[1]}.")
        return self._task(path[1], path[2:], query)

    def _task(self, id: str, path: list[str], query: dict[str, list[str]]) -> None:
        swarm, task = self.swarm, self.swarm.tasks[id]
        match path:
            case []:
                return self._answer(200, task)
            case ["history"]:
                return self._answer(200, {"items": swarm.history.get(id, [])})
            case ["statistics"]:
                return self._answer(200, swarm.statistics([task]))
            case ["tree"]:
                return self._answer(200, {"items": list(self._below(id)), "complete": True})
            case ["logs"]:
                return self._logs(task, query)
        return self._refuse(404, "not_found", "There is no such thing.")

    def _created(self, described: list[dict[str, Any]]) -> None:
        try:
            ids = self.swarm.add(*described)
        except ValidationError as error:
            return self._refuse(400, "invalid", f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}.")
        except KeyError as unknown:
            return self._refuse(404, "not_found", f"There is no task {unknown.args[0]}.")
        told = {"ids": ids if len(ids) <= MOST_IDS else [], "count": len(ids), "edges": 0, "available": 0}
        return self._answer(201, told)

    def _meant(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        """By group and label, as lists, waits and statistics take them."""
        found = list(self.swarm.tasks.values())
        for said in query.get("label", ()):
            key, _, value = said.partition("=")
            found = [task for task in found if task["labels"].get(key) == value]
        return [task for task in found if "group" not in query or task["group"] == query["group"][0]]

    def _selected(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        chosen = Selection.model_validate(body)
        ids = None if chosen.ids is None else set(map(str, chosen.ids))
        states = None if chosen.state is None else {state.value for state in chosen.state}
        return [
            task
            for task in self.swarm.tasks.values()
            if (ids is None or task["id"] in ids)
            and (chosen.group is None or task["group"] == chosen.group)
            and (states is None or task["state"] in states)
            and chosen.labels.items() <= task["labels"].items()
            and (chosen.name is None or task["name"] == chosen.name)
        ]

    def _listed(self, query: dict[str, list[str]]) -> None:
        found = self._meant(query)
        found = [task for task in found if "state" not in query or task["state"] in query["state"]]
        found = [task for task in found if "name" not in query or task["name"] == query["name"][0]]
        found = [task for task in found if "held" not in query or task["held"]]
        if "failed" in query:
            found = [task for task in found if task["state"] == "terminated" and task["exit_status"]]
        if "oldest" not in query:
            found.reverse()
        if "fields" in query:
            fields = ["id", *query["fields"][0].split(",")]
            found = [{name: task[name] for name in fields} for task in found]
        start, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
        after = start + limit
        self._answer(200, {"items": found[start:after], "next_cursor": str(after) if after < len(found) else None})

    def _wait(self, query: dict[str, list[str]]) -> None:
        over = ("terminated", "cancelled")
        patience_s = float(query["timeout_s"][0])
        self.swarm.changed.wait_for(lambda: all(task["state"] in over for task in self._meant(query)), patience_s)
        return self._answer(200, self.swarm.statistics(self._meant(query)))

    def _cancel(self, body: dict[str, Any]) -> None:
        counts = Counter[str]()
        for task in self._selected(body):
            match task["state"]:
                case "inactive" | "available":
                    task["state"] = "cancelled"
                    counts["cancelled"] += 1
                case "running":
                    task["state"] = "pending_cancellation"
                    counts["pending"] += 1
        self.swarm.changed.notify_all()
        return self._answer(200, {"cancelled": counts["cancelled"], "pending": counts["pending"]})

    def _below(self, id: str) -> Iterator[dict[str, Any]]:
        fields = ("id", "name", "state", "held", "exit_status", "continuations")
        todo, seen = [id], set[str]()
        while todo:
            one = self.swarm.tasks[todo.pop(0)]
            if one["id"] not in seen:
                seen.add(one["id"])
                todo += one["continuations"]
                yield {name: one[name] for name in fields}

    def _logs(self, task: dict[str, Any], query: dict[str, list[str]]) -> None:
        attempt = int(query.get("attempt", [task["retry_count"]])[0])
        log = self.swarm.logs.get((task["id"], attempt, query["stream"][0]), b"")
        offset = int(query["offset"][0])
        body = log[offset : offset + 1000]
        over = self.swarm.history[task["id"]][attempt - 1]["outcome"] is not None
        complete = over and offset + len(body) == len(log)
        headers = {"Stoker-Next-Offset": str(offset + len(body)), "Stoker-Log-Complete": str(complete).lower()}
        self._send(200, body, headers)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._answer(status, {"error": {"code": code, "message": message, "hint": ""}})

    def _answer(self, status: int, told: object, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(told).encode(), headers or {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def worker(name: str, **said: Any) -> dict[str, Any]:
    made = {"id": str(uuid7(BEGAN.timestamp(), sum(name.encode()))), "name": name, "state": "active", "running": 2}
    made |= {"total": {"cpus": 4, "memory": 8192}, "created_at": BEGAN, "seen_at": BEGAN}
    return Worker.model_validate(made | said).model_dump(mode="json")
