"""What a server says of itself."""

from pydantic import Field

from stoker.wire.model import Answer


class ServerInfo(Answer):
    name: str = Field(examples=["laptop"], description="Of the replica that answered.")
    version: str = Field(examples=["0.1.0"])


class Health(Answer):
    status: str = Field(examples=["ok"])
    version: str = Field(examples=["0.1.0"])
