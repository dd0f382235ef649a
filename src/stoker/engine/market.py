"""What all backends offer, kept where the placer can read it while it holds a lock."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from stoker.backends.base import Backend, Want
from stoker.core.commitment import Moved
from stoker.core.errors import Unavailable
from stoker.core.offer import Offer, rested_at
from stoker.engine.loop import Counts
from stoker.store import instance as instance_store
from stoker.store.database import Database
from stoker.store.instance import Failure

MARKET = "market"
PERIOD_S = 15.0
REMEMBERED_S = 3 * 3600.0
"""After so many half-lives a failure speaks against nobody any more."""
MOST_FAILURES = 10_000
EARLY_S = 60.0
"""A machine that is lost so soon after its launch was as good as refused."""

log = structlog.get_logger()

_Key = tuple[str, str, str, bool]


class Market:
    """A `Merchant` that a loop keeps up to date."""

    def __init__(
        self, database: Database, now: Callable[[], float], backends: Mapping[str, Backend], changed: Callable[[], None]
    ) -> None:
        """`changed` is called when there is something new to be had."""
        self._database, self._now, self._backends, self._changed = database, now, backends, changed
        self._by_backend: dict[str, Sequence[Offer]] = {}
        self._failures = defaultdict[_Key, list[Failure]](list)
        self._shown: tuple[Offer, ...] = ()

    def offers(self, now: float) -> Sequence[Offer]:
        return self._shown

    def saw(self, moved: Iterable[Moved]) -> bool:
        """Whether a machine was refused, preempted or lost, which the very next plan has to know: the commit that said
        so has woken the placer."""
        failed = [one.after for one in moved if one.kind == "instance" and _failed(one)]
        for after in failed:
            key = (after.backend, after.offer, after.location, after.spot)
            self._failures[key].append(Failure(*key, after.failed_at, after.launched_at))
        if failed:
            self._show(self._now(), "")
        return bool(failed)

    async def once(self) -> Counts:
        errors = list[str]()
        for name, backend in self._backends.items():
            try:
                self._by_backend[name] = await backend.offers(Want())
            except Unavailable as error:
                # What it offered before is still the best that is known.
                log.warning("a provider does not tell its offers", backend=name, error=str(error))
                errors.append(f"{name}: {error}")
        now = self._now()
        async with self._database.connection() as connection:
            failures = await instance_store.failures(connection, now - REMEMBERED_S, MOST_FAILURES)
        by_key = defaultdict[_Key, list[Failure]](list)
        for one in failures:
            by_key[one.backend, one.offer, one.location, one.spot].append(one)
        self._failures = by_key
        return self._show(now, "; ".join(errors))

    def _show(self, now: float, error: str) -> Counts:
        shown, rests = list[Offer](), list[float]()
        for offer in (one for offers in self._by_backend.values() for one in offers):
            failures = self._failures.get((offer.backend, offer.name, offer.location, offer.spot), ())
            if (until := rested_at(_early(failures), now)) > now:
                rests.append(until)
                # What is sold out does not come back with the end of its rest. For people, so in whole seconds: what
                # fades by the moment is no news for the placer.
                offer = replace(offer, available=0, resting_until=math.ceil(until) if offer.available != 0 else None)
            shown.append(replace(offer, failures=tuple(one.failed_at for one in failures)))
        before, self._shown = self._shown, tuple(shown)
        if before != self._shown:
            self._changed()
        return Counts(before != self._shown, min(rests) - now + 0.001 if rests else None, error=error)


def _failed(one: Moved) -> bool:
    failed_at = one.after.failed_at
    return failed_at is not None and (one.before is None or one.before.failed_at != failed_at)


def _early(failures: Iterable[Failure]) -> list[float]:
    return [one.failed_at for one in failures if one.launched_at is None or one.failed_at - one.launched_at < EARLY_S]
