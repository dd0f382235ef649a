"""What a measurement says, and where it is written."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

PATH = Path(__file__).parent / "results.json"


@dataclass(frozen=True, slots=True)
class Result:
    """`limit` is the budget, `peer` what was measured beside it, `ratio` the value over the peer's."""

    name: str
    value: float
    unit: str
    limit: str = ""
    peer: str = ""
    ratio: float | None = None
    ok: bool | None = None

    def __str__(self) -> str:
        verdict = {True: "ok", False: "MISSED", None: ""}[self.ok]
        ratio = f"{self.ratio:.2f} x {self.peer}" if self.ratio is not None else self.peer
        return f"{self.name:58} {self.value:12,.2f} {self.unit:14} {self.limit:22} {ratio:40} {verdict}"


def write(results: list[Result]) -> None:
    PATH.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
