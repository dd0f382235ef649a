"""One SSH connection to one host: keys, pinned host keys, gates on the way, and what goes wrong in words.

`asyncssh` takes a while to import, and a server without such hosts does without it: it is imported by the first
connection.
"""

import asyncio
import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stoker.core.errors import Unavailable
from stoker.core.route import Hop, Route

if TYPE_CHECKING:
    import asyncssh

CONNECT_S: Final = 10.0
LOGIN_S: Final = 20.0
KEEPALIVE_S: Final = 4.0
KEEPALIVES: Final = 3
"""So many unanswered ones in a row, and the link is down: within fifteen seconds."""
HOST_KEY_CHANGED: Final = "host_key_changed"
REFUSED: Final = "login_refused"
AWAY: Final = "host_away"
ALGORITHMS: Final = [
    "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "rsa-sha2-512", "rsa-sha2-256",
]  # fmt: skip
"""Of host keys, of which the first that a host has is pinned; certificates are for those who trust an authority."""


@dataclass(frozen=True, slots=True)
class Access:
    """All that it takes to log in."""

    route: Route
    keys: Mapping[str, str] = field(repr=False)
    """Private keys, by the names that the route has for them."""
    public: Mapping[str, str] = field(default_factory=dict)
    """The lines that belong in `authorized_keys` there."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """By place, the key that a host showed when we first met it."""
    project: bool = True
    """The key is the project's where no file is named."""


@dataclass(slots=True)
class Met:
    """Host keys that were seen on the way: those to be pinned, and those that are others than the pinned ones."""

    fresh: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Connection:
    main: "asyncssh.SSHClientConnection"
    gate: "asyncssh.SSHClientConnection | None"

    @property
    def closed(self) -> bool:
        return self.main.is_closed()

    def close(self) -> None:
        for one in (self.main, self.gate):
            if one is not None:
                one.abort()


async def connect(access: Access, met: Met) -> Connection:
    """`Unavailable` says what is wrong and who has to do what. `met` has the keys that were seen, also then."""
    route, gate = access.route, None
    if route.jump is not None:
        gate = await _hop(access, route.jump, route.jump.place, None, met)
    try:
        return Connection(await _hop(access, route.target, route.place, gate, met), gate)
    except BaseException:
        if gate is not None:
            gate.abort()
        raise


async def _hop(
    access: Access, hop: Hop, place: str, gate: "asyncssh.SSHClientConnection | None", met: Met
) -> "asyncssh.SSHClientConnection":
    import asyncssh

    pinned = access.pins.get(place)

    class Doorman(asyncssh.SSHClient):
        def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
            shown = key.export_public_key().decode().strip().rsplit(" ", 1 if key.get_comment() else 0)[0]
            if pinned is None:
                met.fresh[place] = shown
            elif shown != pinned:
                met.changed[place] = shown
                return False
            return True

    algorithms = ALGORITHMS if pinned is None else _algorithms(pinned.split()[0])
    try:
        key = asyncssh.import_private_key(access.keys[hop.identity])
        async with asyncio.timeout(CONNECT_S + LOGIN_S):
            return await asyncssh.connect(
                hop.host, hop.port, tunnel=gate, username=hop.user, client_keys=[key], client_factory=Doorman,
                known_hosts=lambda host, addr, port: ([], [], []), server_host_key_algs=algorithms, config=None,
                agent_path=None, preferred_auth="publickey", compression_algs=None, keepalive_interval=KEEPALIVE_S,
                keepalive_count_max=KEEPALIVES, connect_timeout=CONNECT_S, login_timeout=LOGIN_S,
            )  # fmt: skip
    except (OSError, asyncssh.Error, TimeoutError, ValueError) as error:
        raise _told(error, hop, place, access, met, behind=gate is not None) from None


def _algorithms(kind: str) -> list[str]:
    """Of the kind of key that is pinned: a host that has several shows that one again."""
    return ["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind]


def _told(error: Exception, hop: Hop, place: str, access: Access, met: Met, *, behind: bool) -> Unavailable:
    import asyncssh

    where = f"{hop.place}{' (from its gate)' if behind else ''}"
    match error:
        case asyncssh.HostKeyNotVerifiable() | asyncssh.KeyExchangeFailed() if place in access.pins:
            return _changed(place, access.pins[place], met.changed.get(place, ""))
        case asyncssh.PermissionDenied():
            line = access.public.get(hop.identity, "")
            whose = f"the key {hop.identity}" if hop.identity else "the key of the project"
            hint = f"Add this line to ~/.ssh/authorized_keys of {hop.user} there: {line}"
            return Unavailable(f"{where} does not let {hop.user} in with {whose}.", hint=hint, code=REFUSED)
        case asyncssh.KeyImportError():
            hint = "A key with a passphrase is of no use to a server: name one without, or none at all."
            return Unavailable(f"The key {hop.identity} cannot be used: {error}.", hint=hint, code=REFUSED)
        case socket.gaierror():
            hint = "Correct it in the fleet's file, or write its address."
            return Unavailable(f"The server knows no host {hop.host}.", hint=hint, code=AWAY)
        case ConnectionRefusedError():
            hint = f"Start sshd there, or correct the port {hop.port} in the fleet's file."
            return Unavailable(f"{where} refuses connections.", hint=hint, code=AWAY)
        case TimeoutError():
            return _away(where)
        case OSError() if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT):
            return _away(where)
        case asyncssh.ChannelOpenError():
            hint = "Look whether it is on, and whether its gate may reach it."
            return Unavailable(f"{hop.place} is not reached from its gate: {error.reason}.", hint=hint, code=AWAY)
    return Unavailable(f"{where} cannot be logged in to: {str(error) or type(error).__name__}.", code=AWAY)


def _away(where: str) -> Unavailable:
    hint = "Look whether it is on, and whether the server may reach it; it is tried again."
    return Unavailable(f"{where} does not answer.", hint=hint, code=AWAY)


def _changed(place: str, pinned: str, shown: str) -> Unavailable:
    now = f"now it is {fingerprint(shown)}" if shown else "now it has none of that kind"
    said = f"The host key of {place} has changed: it was {fingerprint(pinned)}, {now}."
    hint = "If it was set up anew, `stoker instance trust NAME` takes the new key; if not, somebody may stand between."
    return Unavailable(said, hint=hint, code=HOST_KEY_CHANGED)


def fingerprint(public: str) -> str:
    """As `ssh-keygen -l` prints it."""
    import base64
    import hashlib

    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
