"""Sections that Ctrl-C and other exceptions from signal handlers cannot interrupt, except at chosen places.

with deferring_interrupts():        Ctrl-C is noted, and raised after the block, or
    ...
    with interrupts_allowed():    here: in a wait that loses nothing
        poll()
    ...
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from reap.system.native import at_fork

_signal = import_module("_signal")
SIGNALS = tuple(getattr(_signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1") if hasattr(_signal, name))
"""The deferred signals; Windows has the first two."""

set_handler: Callable[[int, Any], Any] = _signal.signal
"""`signal.signal` is a Python function around this one: a handler may raise in it before and after the change."""
handler_of: Callable[[int], Any] = _signal.getsignal
"""`signal.getsignal` is a Python function too, and takes ten times as long."""


class DeferringHandler:
    """A signal handler that stores the signal, or passes it on while it is open.

    Args:
        handler: the handler that it replaces.

    Attributes:
        replaced: as given.
        came: the last stored signal.
        is_open: whether signals are passed on.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.replaced = handler
        self.came: tuple[int, FrameType | None] | None = None
        self.is_open = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        self.came = (number, frame)
        if self.is_open:
            self.let_through()

    def let_through(self) -> None:
        """Pass on the stored signal; if that raises, the handler is closed."""
        was_open, self.is_open = self.is_open, False
        came, self.came = self.came, None
        if came is not None:
            self.replaced(*came)
        self.is_open = was_open


class deferring_interrupts:  # noqa: N801  a context manager, which must not lose a handler between two lines
    """Defers Ctrl-C to the end of the `with` block, so that commands sent to workers and the record of them stay consistent.

    Other signals that users send, to end work that takes too long or to request a save, are deferred too.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[int, Any]] = []
        self._own: list[DeferringHandler] = []
        self._closed: list[DeferringHandler] = []

    def __enter__(self) -> None:
        if current_thread() is not main_thread():
            return
        try:
            for number in SIGNALS:
                handler = handler_of(number)
                if callable(handler):  # not SIG_DFL, SIG_IGN, nor a handler installed outside Python
                    self._hold_back(number, handler)
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *exception: object) -> None:
        self._leave()

    def _hold_back(self, number: int, handler: Any) -> None:
        if isinstance(handler, DeferringHandler):
            if handler.is_open:
                self._closed.append(handler)
                handler.is_open = False
        else:
            self._own.append(DeferringHandler(handler))
            self._replaced.append((number, handler))
            set_handler(number, self._own[-1])

    def _leave(self) -> None:
        """Restore all handlers, whatever arrives meanwhile; then pass on the stored signals."""
        try:
            self._put_back()
        finally:
            self._put_back()  # if a handler that is already back raised an exception between two of the others
        error: BaseException | None = None
        for handler in self._closed:
            handler.is_open = True
        for handler in (*self._closed, *self._own):
            try:
                handler.let_through()
            except BaseException as raised:  # noqa: BLE001  of a signal's handler, raised once the rest is done
                error = error or raised
        try:
            if error is not None:
                raise error
        finally:
            del error  # it holds this frame, and would keep the objects of the callers' frames

    def _put_back(self) -> None:
        while self._replaced:
            set_handler(*self._replaced[-1])
            self._replaced.pop()


class interrupts_allowed:  # noqa: N801  a context manager, as the other one
    """Lets Ctrl-C interrupt the `with` block, although it is inside a `deferring_interrupts` section."""

    def __init__(self) -> None:
        self._opened: list[DeferringHandler] = []

    def __enter__(self) -> None:
        if current_thread() is not main_thread():
            return
        try:
            for number in SIGNALS:
                handler = handler_of(number)
                if isinstance(handler, DeferringHandler):
                    self._opened.append(handler)
                    handler.is_open = True
                    if handler.came is not None:
                        handler.let_through()
        except BaseException:
            self._close()
            raise

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        try:
            for handler in self._opened:
                handler.is_open = False
        finally:  # again, if an interrupt came between two of them
            for handler in self._opened:
                handler.is_open = False


def _restore_handlers() -> None:
    """Restore the replaced handlers in a fork, which may lack the thread that replaced them."""
    for number in SIGNALS:
        handler = handler_of(number)
        if isinstance(handler, DeferringHandler):
            set_handler(number, handler.replaced)


at_fork(after_in_child=_restore_handlers)
