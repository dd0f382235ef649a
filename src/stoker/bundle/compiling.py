"""Sources into bytecode, the same wherever and whenever it is done: a program for a process of its own.

Reads `[[source, name, target], …]` as JSON from its input. What marshal writes depends on which constants others hold
as well, so it is done by a fresh interpreter that does nothing else, in the order of the list. Of the standard library
only, because it is started without anything else.
"""

import importlib.util
import json
import marshal
import os
import sys
from collections.abc import Sequence
from typing import Final

_UNCHECKED_HASH: Final = (1).to_bytes(4, "little")


def compiled(source: bytes, name: str) -> bytes:
    """`name` is what tracebacks call it."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source) + marshal.dumps(code)


def main() -> int:
    jobs: Sequence[Sequence[str]] = json.load(sys.stdin)
    for source, name, target in jobs:
        with open(source, "rb") as file:
            data = compiled(file.read(), name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
