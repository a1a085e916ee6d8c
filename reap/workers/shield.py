"""Sections that Ctrl-C, and what else raises out of a signal's handler, does not come into, and places in them where it may.

with uninterrupted():        Ctrl-C is noted, and raised behind the body, or
    ...
    with interruptible():    here: in a wait that loses nothing
        poll()
    ...
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from signal import SIGALRM, SIGINT, SIGTERM, SIGUSR1
from threading import current_thread, main_thread
from types import FrameType
from typing import Any


class Shield:
    """A handler of a signal that keeps it for later, or passes it on where it is open.

    Args:
        handler: the handler in whose place it is.

    Attributes:
        came: the last signal that is kept.
        is_open: whether signals are passed on.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler
        self.came: tuple[int, FrameType | None] | None = None
        self.is_open = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        self.came = (number, frame)
        if self.is_open:
            self.let_through()

    def let_through(self) -> None:
        """Pass on what came; where that raises, the shield is closed."""
        was_open, self.is_open = self.is_open, False
        came, self.came = self.came, None
        if came is not None:
            self._handler(*came)
        self.is_open = was_open


def _handler(number: int) -> Any:
    """What a signal calls in this thread: a `Shield`, another function, or None."""
    handler = signal.getsignal(number)
    return handler if callable(handler) and current_thread() is main_thread() else None


@contextmanager
def uninterrupted() -> Generator[None]:
    """Ctrl-C waits for the end of the body: what was sent to workers and what is known of it stay in step.

    So do other signals by which people end what takes too long, or has to be saved.
    """
    with _shielded(SIGINT), _shielded(SIGTERM), _shielded(SIGALRM), _shielded(SIGUSR1):
        yield


@contextmanager
def interruptible() -> Generator[None]:
    """Ctrl-C may come into the body though it is part of an `uninterrupted` one."""
    with _opened(SIGINT), _opened(SIGTERM), _opened(SIGALRM), _opened(SIGUSR1):
        yield


@contextmanager
def _shielded(number: int) -> Generator[None]:
    handler = _handler(number)
    if handler is None:
        yield
    elif isinstance(handler, Shield):
        was_open, handler.is_open = handler.is_open, False
        try:
            yield
        finally:
            if was_open:
                handler.is_open = True
                handler.let_through()
    else:
        shield = Shield(handler)
        signal.signal(number, shield)
        try:
            yield
        finally:
            signal.signal(number, handler)
            shield.let_through()


@contextmanager
def _opened(number: int) -> Generator[None]:
    shield = _handler(number)
    if not isinstance(shield, Shield):
        yield
        return
    try:
        shield.is_open = True
        shield.let_through()
        yield
    finally:
        shield.is_open = False
