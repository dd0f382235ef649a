"""Begins a module of the bundle, as `python -m` would: `start.py MODULE …`. Copied into each bundle."""

import os
import sys

root = sys.prefix
# Without the archive of the standard library that Python would look for first, and that is not here.
sys.path[:] = [*(place for place in sys.path if not place.endswith(".zip")), f"{root}/packages", f"{root}/agents"]
del sys.argv[0]

# Python itself sets this where there is no locale, and whatever we start would inherit it.
if "LC_CTYPE" in os.environ:
    with open("/proc/self/environ", "rb") as file:
        if b"\0LC_CTYPE=" not in b"\0" + file.read():
            del os.environ["LC_CTYPE"]

import runpy  # noqa: E402

runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
