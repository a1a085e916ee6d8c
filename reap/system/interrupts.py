"""Sections that Ctrl-C, and what else raises out of a signal's handler, does not come into, and places in them where it may.

with deferring_interrupts():        Ctrl-C is noted, and raised behind the body, or
    ...
    with interrupts_allowed():    here: in a wait that loses nothing
        poll()
    ...
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from signal import SIGALRM, SIGINT, SIGTERM, SIGUSR1
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

SIGNALS = SIGINT, SIGTERM, SIGALRM, SIGUSR1

_signal = import_module("_signal")
set_handler: Callable[[int, Any], Any] = _signal.signal
"""`signal.signal` is a function around this one: a handler may raise in it before and behind the change."""
handler_of: Callable[[int], Any] = _signal.getsignal
"""So is `signal.getsignal`, which takes ten times as long."""


class Shield:
    """A handler of a signal that keeps it for later, or passes it on where it is open.

    Args:
        handler: the handler in whose place it is.

    Attributes:
        behind: that handler.
        came: the last signal that is kept.
        is_open: whether signals are passed on.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.behind = handler
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
            self.behind(*came)
        self.is_open = was_open


class deferring_interrupts:  # noqa: N801  a context manager, which must not lose a handler between two lines
    """Ctrl-C waits for the end of the body: what was sent to workers and what is known of it stay in step.

    So do other signals by which people end what takes too long, or has to be saved.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[int, Any]] = []
        self._own: list[Shield] = []
        self._closed: list[Shield] = []

    def __enter__(self) -> None:
        if current_thread() is not main_thread():
            return
        try:
            for number in SIGNALS:
                handler = handler_of(number)
                if callable(handler):  # not SIG_DFL, SIG_IGN, nor what was put there by other than Python
                    self._hold_back(number, handler)
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *exception: object) -> None:
        self._leave()

    def _hold_back(self, number: int, handler: Any) -> None:
        if isinstance(handler, Shield):
            if handler.is_open:
                self._closed.append(handler)
                handler.is_open = False
        else:
            self._own.append(Shield(handler))
            self._replaced.append((number, handler))
            set_handler(number, self._own[-1])

    def _leave(self) -> None:
        """Have all handlers as before, whatever comes meanwhile; then pass on what came."""
        try:
            self._put_back()
        finally:
            self._put_back()  # where an exception of a handler that was back already came between two of the others
        error: BaseException | None = None
        for shield in self._closed:
            shield.is_open = True
        for shield in (*self._closed, *self._own):
            try:
                shield.let_through()
            except BaseException as raised:  # noqa: BLE001  of a signal's handler, raised when the rest is done
                error = error or raised
        try:
            if error is not None:
                raise error
        finally:
            del error  # it holds this frame, and would keep what the callers' frames hold

    def _put_back(self) -> None:
        while self._replaced:
            set_handler(*self._replaced[-1])
            self._replaced.pop()


class interrupts_allowed:  # noqa: N801  a context manager, as the other one
    """Interrupts may come into the body although it is part of a `deferring_interrupts` one."""

    def __init__(self) -> None:
        self._opened: list[Shield] = []

    def __enter__(self) -> None:
        if current_thread() is not main_thread():
            return
        try:
            for number in SIGNALS:
                shield = handler_of(number)
                if isinstance(shield, Shield):
                    self._opened.append(shield)
                    shield.is_open = True
                    if shield.came is not None:
                        shield.let_through()
        except BaseException:
            self._close()
            raise

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        try:
            for shield in self._opened:
                shield.is_open = False
        finally:  # again, if an interrupt came between two of them
            for shield in self._opened:
                shield.is_open = False


def _drop_shields() -> None:
    """The handlers are those behind the shields: this is a fork, and who put them there may be a thread that it has not."""
    for number in SIGNALS:
        handler = handler_of(number)
        if isinstance(handler, Shield):
            set_handler(number, handler.behind)


os.register_at_fork(after_in_child=_drop_shields)
