"""Images: which one a name means, and pulling it while people watch."""

import base64
import json
from asyncio import timeout
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stoker.core.errors import Broken, NotFound, StokerError
from stoker.shim.engine import Engine, in_path
from stoker.wire.shim import RegistryAuth

DEFAULT_REGISTRY: Final = "https://index.docker.io/v1/"
_HERE: Final = ("Already exists", "Pull complete")
_DONE: Final = ("Download complete", "Extracting", "Verifying Checksum", *_HERE)

_HINTS: Final = (
    # Registries do not tell who has no password whether there is such an image.
    (
        ("credentials", "unauthorized", "denied", "forbidden"),
        "Look at its name, and say registry_auth with the username and the password that its registry wants.",
    ),
    (("not found", "manifest unknown", "unknown manifest", "no matching manifest"), "Look at its name and its tag."),
    (("dial tcp", "no such host", "timeout", "refused"), "Look whether its host reaches that registry."),
)

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Image:
    """One that is here, as far as a container has to know it."""

    id: str
    env: dict[str, str] = field(default_factory=dict)
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""


def tagged(name: str) -> str:
    """With `latest` where neither a tag nor a digest is said: an engine would pull every tag there is."""
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def registry(name: str) -> str:
    """Where it comes from. The first part is a host when it looks like one."""
    first, slash, _ = name.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else DEFAULT_REGISTRY


def header(name: str, auth: RegistryAuth | None) -> dict[str, str]:
    if auth is None:
        return {}
    said = {"username": auth.username, "password": auth.password, "serveraddress": registry(name)}
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(said).encode()).decode()}


async def find(engine: Engine, name: str) -> Image | None:
    try:
        found = await engine.ask("GET", f"/images/{in_path(tagged(name))}/json")
    except NotFound:
        return None
    return read(found)


def read(found: Mapping[str, Any]) -> Image:
    said = found.get("Config") or {}
    return Image(
        id=found["Id"],
        env=dict(one.partition("=")[::2] for one in said.get("Env") or ()),
        user=said.get("User") or "",
        entrypoint=tuple(said.get("Entrypoint") or ()),
        command=tuple(said.get("Cmd") or ()),
        working_dir=said.get("WorkingDir") or "",
    )


async def pull(
    engine: Engine, name: str, auth: RegistryAuth | None, progress: Progress, *, within_s: float, quiet_s: float
) -> None:
    """Raises what the engine says of it, or that it took too long: in all, or since anything happened."""
    layers = Layers()
    lines = engine.lines("POST", "/images/create", params={"fromImage": tagged(name)}, headers=header(name, auth))
    try:
        async with timeout(within_s):
            while True:
                try:
                    async with timeout(quiet_s):
                        line = await anext(lines)
                except StopAsyncIteration:
                    return
                if "error" in line:
                    raise refused(name, f": {str(line['error']).rstrip('.')}.")
                layers.heard(line)
                progress(layers.pulled_bytes, layers.total_bytes)
    except TimeoutError:
        raise Broken(
            f"The image {name} could not be pulled: nothing more came for too long, or it took longer than "
            f"{within_s:g} s in all.",
            hint="Look at its registry, or give it more time.",
            code="pull_too_slow",
        ) from None
    except StokerError as error:
        if error.code != "engine":
            raise
        raise refused(name, f". {error.sentence}") from error
    finally:
        # The engine stops pulling when nobody listens any more.
        await lines.aclose()  # type: ignore[attr-defined]


def refused(name: str, said: str) -> Broken:
    """What the engine says of it, and what that means: it has words of its own for who is not let in."""
    lower = said.lower()
    hint = next((hint for words, hint in _HINTS if any(word in lower for word in words)), "")
    return Broken(f"The image {name} cannot be pulled{said}", hint=hint, code="pull")


class Layers:
    """How far a pull has come, from what the engine says of each layer."""

    def __init__(self) -> None:
        self._pulled: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def heard(self, line: Mapping[str, Any]) -> None:
        id, status = str(line.get("id", "")), str(line.get("status", ""))
        detail = line.get("progressDetail") or {}
        if status == "Downloading" and "current" in detail:
            self._pulled[id] = int(detail["current"])
            self._total[id] = max(int(detail.get("total", 0)), self._pulled[id])
        elif status in _DONE and id in self._total:
            self._pulled[id] = self._total[id]

    @property
    def pulled_bytes(self) -> int:
        return sum(self._pulled.values())

    @property
    def total_bytes(self) -> int | None:
        return sum(self._total.values()) or None
