"""Who is alive: one heartbeat row a server process, not a lease for every thing it does."""

from stoker.store.database import Connection

SUCCEED = "DELETE FROM replica WHERE name = $1"

REGISTER = "INSERT INTO replica (name, seen_at) VALUES ($1, $2) RETURNING epoch"

RENEW = """
UPDATE replica SET seen_at = greatest(seen_at, $2) WHERE epoch = $1
RETURNING (SELECT count(*) FROM replica AS other WHERE other.epoch <> $1)
"""

BURY = "DELETE FROM replica WHERE seen_at < $1 AND epoch <> $2 RETURNING epoch"

LEAVE = "DELETE FROM replica WHERE epoch = $1"

CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


async def register(tx: Connection, name: str, now: float) -> int:
    await tx.execute(SUCCEED, name)
    epoch: int = await tx.fetchval(REGISTER, name, now)
    return epoch


async def renew(tx: Connection, epoch: int, now: float) -> int | None:
    """How many others there are. None: they have buried this epoch, and its wishes are theirs now."""
    others: int | None = await tx.fetchval(RENEW, epoch, now)
    return others


async def bury(tx: Connection, silent_since: float, own_epoch: int) -> list[int]:
    """End the epochs that were not renewed since; what they owned has no owner any more."""
    return [row["epoch"] for row in await tx.fetch(BURY, silent_since, own_epoch)]


async def others(tx: Connection, epoch: int) -> int:
    """How many other replicas have not been given up."""
    count: int = await tx.fetchval("SELECT count(*) FROM replica WHERE epoch <> $1", epoch)
    return count


async def leave(tx: Connection, epoch: int) -> None:
    """A replica that stops in good order hands its work back at once."""
    await tx.execute(LEAVE, epoch)


async def clock(tx: Connection) -> float:
    """The database's own time: replicas agree on it, whatever their hosts believe."""
    moment: float = await tx.fetchval(CLOCK)
    return moment
