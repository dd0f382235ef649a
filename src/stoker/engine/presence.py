"""Since when this process is there without a break, so that it judges nobody for a time in which it was away itself.

Silence means something only to one who listened: after a start, a freeze or an outage of the database, everybody else
has a full new period to be heard.
"""


class Presence:
    """`away_after_s`: not seen for so long, it was away."""

    def __init__(self, away_after_s: float) -> None:
        self._away_after_s = away_after_s
        self.since = self._at = float("-inf")

    def seen(self, now: float) -> None:
        """It got through to the database."""
        if self.away(now):
            self.since = now
        self._at = now

    def away(self, now: float) -> bool:
        return now - self._at > self._away_after_s

    def lasted_s(self, now: float) -> float:
        return 0.0 if self.away(now) else now - self.since
