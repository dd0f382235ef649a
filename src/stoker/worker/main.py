"""Where a worker is wired: `run` is one until it ends."""

import asyncio
import gc
import os
import sys

import structlog

from stoker.worker.guard import Guard
from stoker.worker.keeper import kill_children
from stoker.worker.memory import offer_to_memory_killer
from stoker.worker.place import Place
from stoker.worker.settings import Settings
from stoker.worker.worker import Worker


def run(settings: Settings, guard: Guard, version: str) -> None:
    _speak_plainly()
    _keep_descriptors()
    offer_to_memory_killer()
    place = Place(settings.directory)
    place.clear_dead()
    # What was imported stays: nobody needs to look through it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        asyncio.run(_run(settings, place, guard, version))
    finally:
        kill_children()


async def _run(settings: Settings, place: Place, guard: Guard, version: str) -> None:
    await Worker(settings, place, guard, version).run()


def _keep_descriptors() -> None:
    """What whoever started us left open is not for tasks."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                # The directory itself, which is closed by now.
                continue


def _speak_plainly() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event=0
            ),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
