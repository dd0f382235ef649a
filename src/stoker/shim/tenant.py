"""Who a project's jobs run as. A number that was given to a project is never given to another.

As root each project has a user of its own. Without root there is only ourselves, and jobs of two projects could read
each other's files: then the first project that comes is the only one.
"""

import grp
import pwd
import secrets
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from stoker.core.errors import Conflict
from stoker.shim.ledger import Ledger

FIRST_UID: Final = 200_000
RANGES: Final = 300
RANGE: Final = 1_000
NOBODY: Final = -1


@dataclass(frozen=True)
class Tenant:
    """Whom commands run as; None is ourselves."""

    uid: int | None = None
    gid: int | None = None


class Tenants:
    """Not for two threads at once."""

    def __init__(self, ledger: Ledger, *, is_root: bool) -> None:
        self._ledger, self._is_root = ledger, is_root
        # One that was noted without root has no user; nobody must become number -1, or the one after it.
        least = FIRST_UID if is_root else NOBODY
        self._uids = {UUID(project): int(uid) for project, uid in ledger.read() if int(uid) >= least}

    @property
    def only(self) -> UUID | None:
        """Without root the one project that is served, once there is one."""
        return None if self._is_root else next(iter(self._uids), None)

    def known(self, project_id: UUID) -> Tenant | None:
        """Without looking at the disk."""
        uid = self._uids.get(project_id)
        if uid is None:
            return None
        return Tenant(uid, uid) if self._is_root else Tenant()

    def admit(self, project_id: UUID) -> Tenant:
        """A project that may be new. Returns when its number is on disk."""
        if project_id not in self._uids:
            uid = self._next()
            self._ledger.append([(project_id, uid)])
            self._uids[project_id] = uid
        tenant = self.known(project_id)
        assert tenant is not None
        return tenant

    def _next(self) -> int:
        if not self._is_root:
            if self._uids:
                raise Conflict(
                    "This host's agent runs without root and serves one project, which is another one.",
                    hint="Run the agent as root, or use another host for this project.",
                    code="one_project",
                )
            return NOBODY
        # Each home begins at a place of its own, so that two of them on one host share no user.
        uid = max(self._uids.values(), default=FIRST_UID + RANGE * secrets.randbelow(RANGES) - 1) + 1
        while _taken(uid):
            uid += 1
        return uid


def _taken(uid: int) -> bool:
    for look in (pwd.getpwuid, grp.getgrgid):
        try:
            look(uid)
        except KeyError:
            continue
        return True
    return False
