"""The server's own log: structured, as JSON or for a terminal, and without what is secret."""

import logging
import sys
from typing import Any, Final

import structlog

HIDDEN: Final = "•••"
_SECRET: Final = ("token", "secret", "password", "authorization", "env", "url")


def configure(level: str, style: str) -> None:
    """For this whole process; libraries that log in Python's own way are told in the same."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_secrets,
        structlog.processors.format_exc_info,
    ]
    last: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if style == "json" else structlog.dev.ConsoleRenderer(colors=_colours())
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last]
    )
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


def _without_secrets(logger: Any, method: str, entry: structlog.types.EventDict) -> structlog.types.EventDict:
    for key in entry:
        if any(word in key.lower() for word in _SECRET):
            entry[key] = HIDDEN
    return entry


def _colours() -> bool:
    return sys.stderr.isatty()
