"""Sections that Ctrl-C does not come into, and places in them where it may.

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
from threading import current_thread, main_thread
from types import FrameType
from typing import Any


class Shield:
    """A handler of SIGINT that keeps it for later, or passes it on where it is open.

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


def _handler() -> Any:
    """What Ctrl-C calls in this thread: a `Shield`, another function, or None."""
    handler = signal.getsignal(signal.SIGINT)
    return handler if callable(handler) and current_thread() is main_thread() else None


@contextmanager
def uninterrupted() -> Generator[None]:
    """Ctrl-C waits for the end of the body: what was sent to workers and what is known of it stay in step."""
    handler = _handler()
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
        signal.signal(signal.SIGINT, shield)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
            shield.let_through()


@contextmanager
def interruptible() -> Generator[None]:
    """Ctrl-C may come into the body though it is part of an `uninterrupted` one."""
    shield = _handler()
    if not isinstance(shield, Shield):
        yield
        return
    try:
        shield.is_open = True
        shield.let_through()
        yield
    finally:
        shield.is_open = False
