"""What stopped a change, in the words that its caller gets."""

import asyncpg
import structlog

from stoker.core.errors import Broken, Conflict, StokerError
from stoker.core.machine import Refused
from stoker.store.database import ConnectionLost

log = structlog.get_logger()


def explained(error: Exception) -> StokerError:
    if isinstance(error, StokerError):
        log.error("change is broken", error=str(error))
        return error
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "run_name":
        return Conflict(
            "A run of this name is not finished yet.", hint="Stop it, or choose another name.", code="name_taken"
        )
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "idempotency_pkey":
        return Conflict("Something was made under this key at the same moment.", code="key_taken")
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "volume_name":
        return Conflict(
            "A volume of this name was made a moment ago.", hint="Look at the plan again.", code="name_taken"
        )
    log.error("change broke", exc_info=error)
    return Broken(f"The change could not be carried out: {error!r}")


def broken(error: Exception) -> StokerError:
    """Not logged here: a planner meets the same error in every pass, and says it once (`engine/aside.py`)."""
    if isinstance(error, StokerError):
        return error
    told = Broken(f"The change could not be carried out: {error!r}")
    told.__cause__ = error
    return told


def for_caller(error: StokerError | Refused) -> StokerError:
    if isinstance(error, Refused):
        return Conflict(f"{str(error).capitalize()}.", code="state")
    return error


def in_doubt(error: StokerError) -> ConnectionLost:
    """For a change that may have happened before whatever stopped it later."""
    hint = "It is unknown whether the change was committed; saying it again is safe."
    return ConnectionLost(error.sentence, hint=hint, outcome_unknown=True)
