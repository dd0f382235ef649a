"""The shim of this machine, which outlives its server: `stoker down` sends it home when it has nothing to do."""

import fcntl
import json
import socket
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

ANSWER_S: Final = 10.0
GONE_S: Final = 10.0
LOOK_S: Final = 0.02


class _Line(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("shim", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def leave(home: Path) -> str:
    """Ends the shim of this home unless it has jobs; what is left to be said about it, if anything."""
    try:
        path, token = (home / "shim" / "address").read_text().strip(), (home / "shim" / "token").read_text().strip()
        status, said = _ask(path, token)
    except (OSError, HTTPException, ValueError):
        # None was started, or it is gone already.
        return ""
    if status == 409:
        return (
            "The jobs that run here go on without it, and the next `stoker up` finds them. "
            "To end them too: `stoker stop --all` before `stoker down`."
        )
    if status >= 300:
        return f"The agent of this machine did not end: {said}"
    return (
        ""
        if _gone(home / "shim" / "lock")
        else f"The agent of this machine still ends; its log is {home / 'shim' / 'shim.log'}."
    )


def _ask(path: str, token: str) -> tuple[int, str]:
    line = _Line(path)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        line.request("POST", "/leave", body=json.dumps({"force": False}), headers=headers)
        answer = line.getresponse()
        told = json.loads(answer.read())
        return answer.status, told["error"]["message"] if answer.status >= 300 else ""
    finally:
        line.close()


def _gone(lock: Path) -> bool:
    """It holds a lock to its end; the next one must not meet it."""
    give_up_at = time.monotonic() + GONE_S
    with open(lock, "rb") as file:
        while time.monotonic() < give_up_at:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(LOOK_S)
    return False
