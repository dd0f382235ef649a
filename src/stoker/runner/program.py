"""How an agent starts another process of ours."""

import sys

from stoker.bundle.tree import command, own_root


def module_command(module: str) -> list[str]:
    """Starts `python -m module` with the Python, the libraries and the code that this process has itself."""
    root = own_root()
    return [sys.executable, "-m", module] if root is None else command(root, module)
