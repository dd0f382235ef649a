"""The keys of a task that runs in a container: which image, and how it is run.

A task is run in a container exactly when it says `image`, `python` or `docker: true`; otherwise its commands are
processes of the host.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from stoker.core.limits import MOST_PORTS
from stoker.core.policy import Policy
from stoker.core.quantity import parse_size
from stoker.wire.group import contained, resources_of
from stoker.wire.model import Model
from stoker.wire.problem import described
from stoker.wire.shim import PULL_S, Container, Network, RegistryAuth
from stoker.wire.word import no_nul, refused

if TYPE_CHECKING:
    from stoker.wire.configuration import TaskConfiguration

HIDDEN: Final = "•••"
"""In place of what nobody is shown."""
OF_CONTAINERS: Final = ("registry_auth", "entrypoint", "user", "privileged", "ports")
"""Keys that say nothing of a process."""
_IMAGE_HINT: Final = "For example python:3.12-slim, or registry.example.com/team/image:v1."
_DOMAIN: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
_NAME: Final = r"[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"{_DOMAIN}{_NAME}(?::[\w][\w.-]{{0,127}})?(?:@[a-z0-9+._-]+:[0-9a-fA-F]{{32,}})?", re.A
)
_PYTHON: Final = re.compile(r"3\.\d{1,2}(\.\d{1,3})?", re.A)
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.A)


def _image(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        meant = text.rpartition("://")[2].lower()
        hint = f"Did you mean {meant}?" if meant != text and _REFERENCE.fullmatch(meant) else _IMAGE_HINT
        raise refused(f"expected the name of an image, got {described(text)}", hint)
    return text


def _python(text: str) -> str:
    if not _PYTHON.fullmatch(text):
        raise refused(f"expected a version of Python, got {described(text)}", 'For example "3.12".')
    return text


def _port(value: Any) -> Any:
    """As `docker run` has them, with one of the host before it, they are not: which one that is turns out."""
    if isinstance(value, str) and (pair := re.fullmatch(r"[\d.:]*:(\d{1,5})(/tcp)?", value, re.A)):
        hint = f"Write {pair[1]}: its port on the host is chosen when it starts."
        raise refused(f"expected a port of the container, got {described(value)}", hint)
    return value


def _user(text: str) -> str:
    if not _USER.fullmatch(text):
        raise refused(f"expected a user of the image, got {described(text)}", "For example app, 1000 or 1000:1000.")
    return text


def _entrypoint(value: Any) -> Any:
    """A line is read as a shell would read its words."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(no_nul(value)))
    except ValueError as error:
        raise refused(f"these are no words: {error}", "Close the quotes, or write a list.") from None


class Login(Model):
    """Of a private registry. The password is shown to nobody again."""

    model_config = ConfigDict(strict=True)

    username: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(no_nul)]
    password: Annotated[str, Field(min_length=1, max_length=16_384, repr=False), AfterValidator(no_nul)]


Image = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_image)]
Python = Annotated[str, AfterValidator(_python)]
User = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_user)]
Entrypoint = Annotated[
    tuple[Annotated[str, AfterValidator(no_nul)], ...],
    BeforeValidator(_entrypoint),
    Field(strict=False, min_length=1, max_length=MOST_PORTS),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Ports = Annotated[
    tuple[Annotated[int, Field(ge=1, le=65_535), BeforeValidator(_port)], ...],
    Field(strict=False, min_length=1, max_length=MOST_PORTS),
]


@dataclass(frozen=True, slots=True)
class Images:
    """The ones that are taken where a task names none; `{python}` is the version that it asks for."""

    python: str = "python:{python}-slim"
    cuda: str = "rapidsai/miniforge-cuda:cuda12.5.1-base-ubuntu22.04-py{python}"
    docker: str = "docker:cli"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        said = {name: environ.get(f"STOKER_IMAGE_{name.upper()}") for name in ("python", "cuda", "docker")}
        return cls(**{name: value for name, value in said.items() if value})

    def of_task(self, task: "TaskConfiguration", *, gpus: bool) -> str:
        if task.image is not None:
            return task.image
        if task.python is None:
            return self.docker
        return (self.cuda if gpus else self.python).replace("{python}", task.python)


def check(task: "TaskConfiguration") -> None:
    """Raises the first problem of keys that do not go together."""
    for at, what, hint in _problems(task):
        raise PydanticCustomError("refused", "{what}", {"what": what, "hint": hint, "at": at})


def _problems(task: "TaskConfiguration") -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Of keys that do not go together."""
    if task.image is not None and task.python is not None:
        yield ("python",), "image and python do not go together", "The image has its own Python, or none."
    if task.registry_auth is not None and task.image is None:
        yield ("registry_auth",), "it is for an image of yours", "Say image too, or leave it out."
    if contained(task):
        return
    hint = "Say image or python too, or leave it out."
    for key in OF_CONTAINERS:
        if key in task.model_fields_set and getattr(task, key):
            yield (key,), f"{key} is for tasks that run in a container", hint
    for number, one in enumerate((task.resources, *(group.resources for group in task.groups))):
        if one is not None and one.shm_size is not None:
            at = ("resources", "shm_size") if number == 0 else ("groups", number - 1, "resources", "shm_size")
            yield at, "shm_size is for tasks that run in a container", hint


def to_container(task: "TaskConfiguration", node: int, images: Images, *, whole: bool) -> Container | None:
    """`whole`: it has all of its instance, so the host's network is nobody else's."""
    if not contained(task):
        return None
    resources = resources_of(task, node)
    login = task.registry_auth
    return Container(
        image=images.of_task(task, gpus=resources.gpu is not None),
        registry_auth=None if login is None else RegistryAuth(username=login.username, password=login.password),
        entrypoint=task.entrypoint,
        user=task.user or "",
        privileged=task.privileged,
        shm_mb=None if resources.shm_size is None else int(parse_size(resources.shm_size, "shm_size").lo),
        network=Network.HOST if whole else Network.BRIDGE,
        ports=task.ports or (),
        docker=task.docker,
    )


def needs_permission(task: "TaskConfiguration") -> bool:
    """Whoever has either is root on the host."""
    return task.privileged or task.docker


def waiting_runner_s(task: "TaskConfiguration") -> float:
    """How long its runner may take. An image that still comes is no reason to give up: the shim has a limit of its own
    for that, and for one of which nothing more comes."""
    usual: float = Policy().waiting_runner_s
    return usual + PULL_S if contained(task) else usual


def without_secrets(plain: dict[str, Any]) -> dict[str, Any]:
    """A configuration as anybody is shown it."""
    login = plain.get("registry_auth")
    return plain | {"registry_auth": login | {"password": HIDDEN}} if isinstance(login, dict) else plain
