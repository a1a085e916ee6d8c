"""Copies the logging set-up to workers: levels, filters, and handlers that write to stdout or stderr.

Other handlers are not copied, because several processes must not write to one file, socket or queue at once.
"""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from reap.errors import guarded
from reap.workers.pickling import encode

STREAMS = "stdout", "stderr"


class LoggerState(NamedTuple):
    """The set-up of one logger; the empty name is the root's.

    Attributes:
        handlers: their indices among the copied handlers.
        filters: pickled.
    """

    name: str
    level: int
    propagate: bool
    disabled: bool
    handlers: tuple[int, ...]
    filters: bytes


class Logging(NamedTuple):
    """The logging set-up of a process.

    Attributes:
        disabled: the level up to which `logging.disable` silences everything.
        levels: names of levels.
        handlers: pickled, each once.
        loggers: those that differ from a new logger.
    """

    disabled: int
    levels: dict[int, str]
    handlers: list[bytes]
    loggers: list[LoggerState]


def capture() -> Logging:
    """Capture the current logging set-up of this process."""
    manager, handlers = logging.root.manager, list[bytes]()
    numbers: dict[int, int | None] = {}
    loggers = [_state(logger, handlers, numbers) for logger in _loggers() if _is_set_up(logger)]
    levels = {level: name for name, level in logging.getLevelNamesMapping().items() if logging.getLevelName(level) == name}
    return Logging(manager.disable, levels, handlers, loggers)


def restore(found: Logging) -> None:
    """Apply the captured set-up in this process."""
    logging.disable(found.disabled)
    for level, name in found.levels.items():
        logging.addLevelName(level, name)
    made = [_made(data) for data in found.handlers]
    for state in found.loggers:
        logger = logging.getLogger(state.name)
        for handler in [own for own in logger.handlers if _stream_of(own)]:
            logger.removeHandler(handler)
        for handler in [own for number in state.handlers if (own := made[number])]:
            logger.addHandler(handler)
        logger.setLevel(state.level)
        logger.propagate, logger.disabled = state.propagate, state.disabled
        with guarded():
            logger.filters[:] = pickle.loads(state.filters)


def _loggers() -> Iterator[logging.Logger]:
    yield logging.root
    yield from (one for one in list(logging.root.manager.loggerDict.values()) if isinstance(one, logging.Logger))


def _is_set_up(logger: logging.Logger) -> bool:
    is_as_made = logger.propagate and not (logger.level or logger.disabled or logger.handlers or logger.filters)
    return logger is logging.root or not is_as_made


def _state(logger: logging.Logger, handlers: list[bytes], numbers: dict[int, int | None]) -> LoggerState:
    for handler in logger.handlers:
        if id(handler) not in numbers:
            data = _written(handler)
            numbers[id(handler)] = len(handlers) if data else None
            handlers += [data] if data else []
    own = [number for handler in logger.handlers if (number := numbers[id(handler)]) is not None]
    name = "" if logger is logging.root else logger.name
    return LoggerState(name, logger.level, logger.propagate, logger.disabled, tuple(own), _pickled(logger.filters))


def _pickled(value: Any) -> bytes:
    """The pickled bytes of a value; empty if it cannot be pickled, which is not an error here."""
    with guarded():
        return encode(value, "logging").body
    return b""


def _written(handler: logging.Handler) -> bytes:
    stream = _stream_of(handler)
    if stream is None:
        return b""
    state = {name: value for name, value in vars(handler).items() if name not in {"lock", "stream"}}
    return _pickled((type(handler), state, stream))


def _stream_of(handler: logging.Handler) -> str | None:
    """The standard stream that a handler writes to."""
    if not isinstance(handler, logging.StreamHandler) or handler.stream is None:
        return None
    for number, name in enumerate(STREAMS, 1):
        if handler.stream is getattr(sys, name) or handler.stream is getattr(sys, f"__{name}__"):
            return name
        with guarded():
            if handler.stream.fileno() == number:
                return name
    return None


def _made(data: bytes) -> logging.Handler | None:
    with guarded():
        kind, state, stream = pickle.loads(data)
        handler = kind.__new__(kind)
        logging.StreamHandler.__init__(handler, getattr(sys, stream))
        vars(handler).update(state)
        return handler
    return None
