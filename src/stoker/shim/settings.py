"""What a person has written down for a shim: `settings.json` in its home, read when it starts.

`{"gpus": [{"index": 0, "id": "GPU-…", "name": "A100", "memory_mb": 81920, "vendor": "nvidia"}]}`: the GPUs of this
host, instead of those that its drivers know. An empty list: it gives none away.
"""

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError, field_validator

from stoker.core.errors import UserError
from stoker.wire.model import Order
from stoker.wire.shim import HostGpu

NAME: Final = "settings.json"
MOST_GPUS: Final = 1024


class Gpu(Order):
    """One GPU of a described host."""

    index: int = Field(ge=0, lt=MOST_GPUS)
    id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=256)
    memory_mb: int = Field(gt=0, lt=2**40)
    vendor: str = Field(default="nvidia", min_length=1, max_length=64)


class Settings(Order):
    gpus: Annotated[tuple[Gpu, ...], Field(strict=False, max_length=MOST_GPUS)] | None = None

    @field_validator("gpus")
    @classmethod
    def _each_once(cls, gpus: tuple[Gpu, ...] | None) -> tuple[Gpu, ...] | None:
        for what in ("index", "id"):
            said = [getattr(gpu, what) for gpu in gpus or ()]
            if len(set(said)) != len(said):
                raise ValueError(f"two GPUs have the same {what}")
        return gpus

    def described(self) -> tuple[HostGpu, ...] | None:
        """None: whatever the drivers know."""
        return None if self.gpus is None else tuple(HostGpu(**gpu.model_dump()) for gpu in self.gpus)


def read(home: Path) -> Settings:
    """What is wrong keeps a shim from starting: it would promise what its host has not."""
    path = home / NAME
    try:
        return Settings.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"])) or "the whole"
        hint = 'For example {"gpus": [{"index": 0, "id": "GPU-1", "name": "A100", "memory_mb": 81920}]}.'
        raise UserError(f"{path} cannot be used: {key}: {first['msg']}.", hint=hint, code="settings") from None
