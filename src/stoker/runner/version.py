"""Which Stoker this is."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _installed() -> str:
    try:
        return version("stoker")
    except PackageNotFoundError:
        # Run from a checkout that was never installed.
        return "0"


VERSION: Final = _installed()
