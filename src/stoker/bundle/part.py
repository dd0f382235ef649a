"""What a layer is made of, file by file, before it is an archive."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """One file: where it goes, and what is done with its source on the way."""

    name: str
    """Below the root of the bundle."""
    source: Path
    program: bool = False
    """May be executed."""

    @property
    def compiled(self) -> bool:
        """Python goes as bytecode alone: it is half as much, and starts as fast where nothing can be written."""
        return self.source.suffix == ".py" and self.name.endswith(".pyc")


def module(name: str, source: Path) -> Part:
    """Of a file of Python, named with its `.py`."""
    return Part(f"{name}c", source)
