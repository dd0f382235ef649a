"""A shim that dies at a moment that its test names, once: `HOME/die` says `perform container before`, `undo image
after`, `POST /containers/create after` …"""

from tests.agents.shim_stage import SERVE

DYING = (
    """
import os, signal, sys
from pathlib import Path
from stoker.shim import container, docker, engine
MARK = Path(sys.argv[1]) / "die"
# This engine knows of no GPUs.
container.VENDORS["nvidia"] = lambda gpus: {}

def fall(moment):
    if MARK.exists() and MARK.read_text() == moment:
        MARK.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

def dying(owner, name, title):
    real = getattr(owner, name)
    async def act(self, *given, **more):
        fall(f"{title(*given)} before")
        answer = await real(self, *given, **more)
        fall(f"{title(*given)} after")
        return answer
    setattr(owner, name, act)

dying(docker.Docker, "perform", lambda hook, *rest: f"perform {hook}")
dying(docker.Docker, "undo", lambda hook, *rest: f"undo {hook}")
def asked(method, path, *rest):
    return f"{method} {path.split('/stoker-')[0]}{'start' if path.endswith('/start') else ''}"

dying(engine.Engine, "ask", asked)
"""
    + SERVE
)
