"""The backends of a server: made from HOME/backends.yml, or with their defaults where nothing is said."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.backends.base import Backend
from stoker.backends.disk import Disks
from stoker.backends.dummy.backend import Dummy
from stoker.backends.dummy.kind import kinds_of
from stoker.backends.dummy.steering import Steering
from stoker.core.errors import UserError
from stoker.core.volume_facts import Kind
from stoker.server.workshop import Workshop
from stoker.store.cluster import explained
from stoker.wire import backend as wire
from stoker.wire.backend import BackendsConfiguration
from stoker.wire.dummy import default_offers
from stoker.wire.model import Invalid

FILE: Final = "backends.yml"


@dataclass(frozen=True)
class Backends:
    by_name: Mapping[str, Backend]
    dummy: Steering
    disks: Mapping[Kind, Disks]

    async def close(self) -> None:
        for backend in self.by_name.values():
            await backend.close()


def build(home: Path) -> Backends:
    """Inside the event loop: machines that were there are found again at once."""
    said = read(home / FILE)
    offers = default_offers() if said.dummy is None else said.dummy.offers
    with explained(home):
        dummy = Dummy(home / "dummy", kinds_of(offers), Workshop())
        dummy.open()
        return Backends({dummy.name: dummy}, Steering(dummy), {Kind.DUMMY: dummy.disks})


def read(path: Path) -> BackendsConfiguration:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return BackendsConfiguration()
    try:
        return wire.load(text)
    except Invalid as error:
        said = "; ".join(map(str, error.problems))
        raise UserError(f"{path}: {said}.", hint=error.hint, code=error.code) from None
    except UserError as error:
        raise UserError(f"{path}: {error.sentence}", hint=error.hint, code=error.code) from None
