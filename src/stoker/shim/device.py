"""Which task has which GPU: no index is given to two."""

from collections.abc import Sequence
from uuid import UUID

from stoker.core.errors import Conflict, NotFound
from stoker.wire.shim import HostGpu


class Devices:
    """In memory only: who holds what follows from the records of the tasks."""

    def __init__(self, gpus: Sequence[HostGpu]) -> None:
        self.gpus = tuple(gpus)
        self._by_index = {gpu.index: gpu for gpu in gpus}
        self._held: dict[int, UUID] = {}

    def take(self, id: UUID, indices: Sequence[int]) -> tuple[str, ...]:
        """All of them or none; their vendor's ids. May be repeated."""
        for index in indices:
            if index not in self._by_index:
                raise NotFound(f"This host has no GPU {index}.", code="no_gpu")
            if (holder := self._held.get(index, id)) != id:
                raise Conflict(f"GPU {index} is held by task {holder}.", code="gpu_held")
        self._held.update(dict.fromkeys(indices, id))
        return tuple(self._by_index[index].id for index in indices)

    def adopt(self, id: UUID, indices: Sequence[int]) -> None:
        """A task that had them before our restart has them now, also when the driver is away."""
        self._held.update(dict.fromkeys(indices, id))

    def release(self, id: UUID) -> None:
        self._held = {index: holder for index, holder in self._held.items() if holder != id}

    @property
    def held(self) -> dict[int, UUID]:
        return dict(self._held)
