"""Tasks that are claimed and not begun: in the order of their claims, except that small ones may pass for a while."""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice

from stoker.core.fit import Amounts, Room
from stoker.worker.attempt import Attempt
from stoker.worker.limits import MOST_PASSED, PASSING_S


class Queue:
    def __init__(self) -> None:
        self._waiting: deque[Attempt] = deque()
        self._shapes: Counter[tuple[object, ...]] = Counter()
        self._blocked: Attempt | None = None
        self._blocked_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._waiting)

    def add(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        self._shapes[attempt.shape] += 1

    def put_back(self, attempt: Attempt) -> None:
        self._waiting.appendleft(attempt)
        self._shapes[attempt.shape] += 1

    def remove(self, attempt: Attempt) -> None:
        self._waiting.remove(attempt)
        self._uncount(attempt)

    def _uncount(self, attempt: Attempt) -> None:
        self._shapes[attempt.shape] -= 1
        if not self._shapes[attempt.shape]:
            del self._shapes[attempt.shape]

    def next(self, room: Room, now: float) -> tuple[Attempt, Amounts] | None:
        """Takes out the next one that fits."""
        if not self._waiting:
            return None
        head = self._waiting[0]
        option = room.first_fit(head.options)
        if option is not None:
            self._waiting.popleft()
            self._uncount(head)
            return head, head.options[option]
        if self._blocked is not head:
            self._blocked, self._blocked_at = head, now
        if now - self._blocked_at >= PASSING_S or len(self._shapes) == 1:
            return None
        return self._passing(room)

    def _passing(self, room: Room) -> tuple[Attempt, Amounts] | None:
        """Somebody behind the head who fits."""
        too_large = {self._waiting[0].shape}
        for attempt in islice(self._waiting, 1, MOST_PASSED):
            if attempt.shape in too_large:
                continue
            option = room.first_fit(attempt.options)
            if option is not None:
                self.remove(attempt)
                return attempt, attempt.options[option]
            too_large.add(attempt.shape)
        return None

    def left_of(self, room: Room) -> Room:
        """What is left when those that fit have taken their part; nothing while somebody waits for room to be made."""
        for attempt in islice(self._waiting, MOST_PASSED):
            option = room.first_fit(attempt.options)
            if option is None:
                return Room(dict.fromkeys(room.amounts, 0), (0,) * len(room.gpus))
            room = room.without(attempt.options[option])
        return room
