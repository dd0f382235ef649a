"""`disconnect`: what becomes of a job while its server and its host do not reach each other."""

from typing import Final

from pydantic import ConfigDict, Field, model_validator

from stoker.core import policy as core
from stoker.core.errors import UserError
from stoker.wire.duration import Span
from stoker.wire.model import Model
from stoker.wire.word import refused

SHORTEST_S: Final = 10.0
"""A server that is there is heard more often than this."""


class Disconnect(Model):
    """Without it a job goes on, however long the server is away, and is replaced only once it is certainly gone."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"stop_after": "10m", "fail_after": "30m"}]})

    stop_after: Span = Field(description="Its host stops it when it has not heard the server for so long; from 10s on.")
    fail_after: Span = Field(
        description="The server gives it up when it was unreachable for so long; longer than that."
    )

    @model_validator(mode="after")
    def _in_order(self) -> "Disconnect":
        if self.stop_after < SHORTEST_S:
            raise refused(f"stop_after is at least {SHORTEST_S:g} s", "A short break of the network is no reason.")
        try:
            to_disconnect(self)
        except UserError as error:
            raise refused(error.sentence.rstrip("."), error.hint) from None
        return self


def to_disconnect(disconnect: Disconnect | None) -> core.Disconnect | None:
    return None if disconnect is None else core.Disconnect(disconnect.stop_after, disconnect.fail_after)
