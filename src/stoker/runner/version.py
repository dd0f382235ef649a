"""Which Stoker this is."""

from typing import Final

from stoker.bundle import tree


def _installed() -> str:
    root = tree.own_root()
    if root is not None:
        return (root / tree.VERSION).read_text().strip()
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("stoker")
    except PackageNotFoundError:
        # Run from a checkout that was never installed.
        return "0"


VERSION: Final = _installed()
