"""The daemon's log: one structured line for each thing worth knowing, to stderr, secrets taken out.

Session, turn, step and call ids are bound with `structlog.contextvars.bind_contextvars` where they are known,
and are then in every line of that task.
"""

from __future__ import annotations

import logging
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

from turnd.telemetry.redact import Redactor


def configure_logs(stream: TextIO, level: int, redactor: Redactor) -> None:
    """Sends what structlog and the standard library log to a stream, from a level (as in `logging`) upwards.

    A terminal gets lines for people, anything else one JSON object in each line.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                # Before redaction: a traceback's text can hold a secret too.
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                _Redact(redactor),
                _renderer(stream),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


class _Redact:
    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        return {name: self._redactor.named(name, value) for name, value in event.items()}


def _renderer(stream: TextIO) -> Processor:
    if stream.isatty():
        return structlog.dev.ConsoleRenderer()
    return structlog.processors.JSONRenderer()
