"""A server that does as a test says: answers, breaks off, goes away. What a real one does is tested with a real one."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stoker.store.log_place import Place, Segment, last_lines, passed
from stoker.wire.frame import Frame, Stream, encode, frame_end
from stoker.wire.log import skip_text

TOKEN = "token-of-a-test"


def job(**said: Any) -> dict[str, Any]:
    return {
        "id": "0199d4c2-0000-7000-8000-00000000000a",
        "replica": 0,
        "node": 0,
        "submission": 1,
        "status": "DONE",
        "termination_reason": "DONE_BY_RUNNER",
        "message": "",
        "exit_code": 0,
        "exit_signal": None,
        "instance": "local",
        "submitted_at": "2026-05-01T12:00:00Z",
        "started_at": "2026-05-01T12:00:00.050Z",
        "finished_at": "2026-05-01T12:00:03Z",
        "unreachable_since": None,
    } | said


def run(name: str, **said: Any) -> dict[str, Any]:
    return {
        "id": f"0199d4c2-0000-7000-8000-{abs(hash(name)) % 10**12:012}",
        "name": name,
        "project": "main",
        "user": "ann",
        "type": "task",
        "status": "DONE",
        "status_message": "",
        "termination_reason": "ALL_JOBS_DONE",
        "exit_code": 0,
        "submitted_at": "2026-05-01T12:00:00Z",
        "started_at": "2026-05-01T12:00:00.050Z",
        "finished_at": "2026-05-01T12:00:03Z",
        "version": 3,
        "configuration": {"type": "task", "commands": ["true"]},
        "jobs": [job()],
    } | said


def out(text: bytes, time_us: int = 1_777_636_800_000_000) -> bytes:
    return encode(Frame(Stream.STDOUT, time_us, text))


def err(text: bytes, time_us: int = 1_777_636_800_000_000) -> bytes:
    return encode(Frame(Stream.STDERR, time_us, text))


class Fake:
    """Runs by name, the log of all of them, and what is to go wrong."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.log = b""
        self.logs: dict[int, bytes] = {}
        """Of submissions that have one of their own."""
        self.complete = True
        self.sentence = "It waits for a machine."
        self.limit = ""
        """Why every run waits."""
        self.events: list[dict[str, Any]] = []
        """Of every run."""
        self.offers: dict[str, Any] = {}
        self.forgotten = False
        """The place from which somebody follows the events is older than what is kept."""
        self.gone = False
        """Somebody has deleted it while it was followed."""
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        """Method, path with query, and body."""
        self.keys: list[str] = []
        self.break_after: list[int] = []
        """Each stream of a log breaks after so many frames; those behind the last one do not."""
        self.answers: list[tuple[int, dict[str, str], dict[str, Any]]] = []
        """Given instead of the next answers."""
        self.changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"fake": self}))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, *runs: dict[str, Any]) -> None:
        with self.changed:
            self.runs |= {each["name"]: each for each in runs}
            self.changed.notify_all()

    def write(self, *frames: bytes, complete: bool = False) -> None:
        with self.changed:
            self.log += b"".join(frames)
            self.complete = complete
            self.changed.notify_all()

    def paths(self) -> list[str]:
        return [f"{method} {urlsplit(path).path}" for method, path, _ in self.asked]

    @contextmanager
    def serving(self) -> Iterator["Fake"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    fake: Fake
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._take("GET")

    def do_POST(self) -> None:
        self._take("POST")

    def do_DELETE(self) -> None:
        self._take("DELETE")

    def _take(self, method: str) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        self.fake.asked.append((method, self.path, body))
        if key := self.headers.get("Idempotency-Key"):
            self.fake.keys.append(key)
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.fake.answers:
            status, headers, told = self.fake.answers.pop(0)
            return self._answer(status, told, headers)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(401, "unauthorized", "The token is wrong.")
        if not parts.path.startswith("/api/projects/main/"):
            return self._refuse(404, "not_found", "There is no such thing.")
        return self._project(method, parts.path.removeprefix("/api/projects/main/").split("/"), query, body)

    def _project(self, method: str, path: list[str], query: dict[str, str], body: dict[str, Any]) -> None:
        fake = self.fake
        match method, path:
            case "GET", ["runs"]:
                listed = [each for each in fake.runs.values() if not query.get("active") or _active(each)]
                return self._page(listed, query)
            case "POST", ["runs", "plan"]:
                return self._answer(200, self._plan(body["configuration"]))
            case "POST", ["runs"]:
                made = run(body["configuration"].get("name") or "brave-otter-1", status="SUBMITTED", jobs=[job()])
                kept = fake.runs.setdefault(made["name"], made)
                return self._answer(201, kept)
            case "GET", ["events"]:
                return self._answer(200, {"items": fake.events, "next_cursor": None})
            case "GET", ["events", "follow"]:
                return self._tell()
            case _, ["offers"]:
                return self._answer(200, fake.offers)
            case "POST", ["runs", "stop"]:
                names = list(fake.runs) if body.get("all") else body["runs"]
                return self._stop(names, body["abort"])
        found = self._found(path[1])
        if found is None:
            return self._refuse(404, "not_found", f"There is no run {path[1]} in project main.")
        return self._run(method, path[2:], query, found)

    def _run(self, method: str, path: list[str], query: dict[str, str], found: dict[str, Any]) -> None:
        fake = self.fake
        match method, path:
            case "GET", []:
                return self._answer(200, found)
            case "DELETE", []:
                del fake.runs[found["name"]]
                return self._answer(204, None)
            case "GET", ["wait"]:
                with fake.changed:
                    fake.changed.wait_for(lambda: not _active(found), float(query.get("timeout_s", 20)))
                return self._answer(200, found)
            case "POST", ["trigger"]:
                return self._answer(200, {"outcome": "started", "sentence": f"A round of {found['name']} starts now."})
            case "POST", ["pause" | "resume" as act]:
                found["schedule"] |= {"paused": act == "pause"}
                return self._answer(200, found)
            case "POST", ["hold" | "release" as act]:
                found["held"] = act == "hold"
                return self._answer(200, found)
            case "GET", ["why"]:
                return self._answer(
                    200,
                    {
                        "sentence": fake.sentence,
                        "reasons": [{"instance": "i", "name": "i-1", "sentence": "is full"}],
                        "more": 0,
                        "limit": fake.limit,
                    },
                )
            case "GET", ["events"]:
                return self._answer(200, {"items": fake.events, "next_cursor": None})
            case "GET", ["events", "follow"]:
                return self._tell()
            case "GET", ["logs", *_] if int(query.get("submission", 0)) > _latest(found):
                return self._refuse(404, "not_found", f"{found['name']} has no such job.")
            case "GET", ["logs"]:
                return self._logs(found, query)
            case "GET", ["logs", "follow"]:
                return self._follow(int(query.get("offset", 0)))
        return self._refuse(404, "not_found", "There is no such thing.")

    def _found(self, name: str) -> dict[str, Any] | None:
        return next((each for each in self.fake.runs.values() if name in (each["name"], each["id"])), None)

    def _plan(self, configuration: dict[str, Any]) -> dict[str, Any]:
        return {
            "action": "create",
            "sentence": "It would start at once.",
            "name": configuration.get("name"),
            "configuration": configuration,
            "current": None,
            "expected": None,
        }

    def _stop(self, names: list[str], abort: bool) -> None:
        stopped = []
        for name in names:
            found = self._found(name)
            if found is None:
                return self._refuse(404, "not_found", f"There is no run {name} in project main.")
            reason = "ABORTED_BY_USER" if abort else "STOPPED_BY_USER"
            found |= {"status": "TERMINATED", "termination_reason": reason, "exit_code": None}
            stopped.append(found)
        self.fake.write(complete=True)
        return self._answer(200, {"items": stopped})

    def _logs(self, found: dict[str, Any], query: dict[str, str]) -> None:
        fake = self.fake
        with fake.changed:
            log = fake.logs.get(int(query.get("submission", 0)), fake.log)
            place = _place(log, query)
            body, end = log[place.offset : place.offset + 64 * 1024], len(log)
        body = body[: _whole(body)]
        headers = {"Stoker-Next-Offset": str(place.offset + len(body)), "Stoker-Log-End": str(end)}
        headers["Stoker-Log-Complete"] = str(fake.complete).lower()
        headers |= {"Stoker-Log-Start": str(place.offset), "Stoker-Log-Skip": skip_text(place.skip)}
        headers |= {"Stoker-Log-Run": found["id"], "Stoker-Log-Submission": str(_latest(found))}
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _follow(self, offset: int) -> None:
        fake = self.fake
        left = fake.break_after.pop(0) if fake.break_after else -1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while left:
            with fake.changed:
                fake.changed.wait_for(lambda seen=offset: len(fake.log) > seen or fake.complete, 0.2)  # type: ignore[misc]
                if fake.gone:
                    self._chunk(b"event: gone\ndata: {}\n\n")
                    self.close_connection = True
                    return
                data, over = fake.log[offset:], fake.complete
            end = frame_end(memoryview(data), 0)
            if end is None:
                if over:
                    self._chunk(b"event: end\ndata:\n\n")
                    self.wfile.write(b"0\r\n\r\n")
                    return
                self._chunk(b": still here\n\n")
                continue
            offset += end
            self._chunk(b"id: %d\ndata: %s\n\n" % (offset, base64.b64encode(data[:end])))
            left -= 1
        # In the middle of the next event.
        self._chunk(b"id: %d\nda" % offset)
        self.close_connection = True

    def _tell(self) -> None:
        told = b"".join(b"id: %d\ndata: %s\n\n" % (one["seq"], json.dumps(one).encode()) for one in self.fake.events)
        lost = {"error": {"message": "The journal is kept from number 9 on.", "hint": "Begin anew."}}
        last = b"event: gone\ndata: %s\n\n" % json.dumps(lost).encode()
        body = b"id: 0\n: still here\n\n" + told + (last if self.fake.forgotten else b"event: end\ndata: {}\n\n")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _page(self, items: list[dict[str, Any]], query: dict[str, str]) -> None:
        start, limit = int(query.get("cursor", 0)), int(query.get("limit", 50))
        after = start + limit
        self._answer(200, {"items": items[start:after], "next_cursor": str(after) if after < len(items) else None})

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._answer(status, {"error": {"code": code, "message": message, "hint": ""}})

    def _answer(self, status: int, told: object, headers: dict[str, str] | None = None) -> None:
        body = b"" if told is None else json.dumps(told).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _latest(found: dict[str, Any]) -> int:
    latest: int = max(each["submission"] for each in found["jobs"] if each["replica"] == 0)
    return latest


def _place(log: bytes, query: dict[str, str]) -> Place:
    """As the server's own log store finds it."""
    if "tail" not in query and "since" not in query:
        return Place(int(query.get("offset", 0)))
    with NamedTemporaryFile() as file:
        file.write(log)
        file.flush()
        segments = [Segment(Path(file.name), 0, len(log))] if log else []
        floor = 0
        if "since" in query:
            floor = passed(segments, round(datetime.fromisoformat(query["since"]).timestamp() * 1e6))
        return last_lines(segments, int(query["tail"]), floor) if "tail" in query else Place(floor)


def _active(run: dict[str, Any]) -> bool:
    return run["status"] not in ("DONE", "FAILED", "TERMINATED")


def _whole(data: bytes) -> int:
    at, view = 0, memoryview(data)
    while (end := frame_end(view, at)) is not None:
        at = end
    return at
