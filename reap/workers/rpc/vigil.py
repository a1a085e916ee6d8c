"""`Vigil`: detects agents on other machines that can no longer be reached.

It regularly calls an operator of torch on them. That runs in C++, without Python, so even a process that is busy for minutes
answers at once. A killed process is noticed at the next call, a cut cable after two unanswered calls in a row.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import rpc

from reap.workers.rpc.agent import Address

INTERVAL = 1.0
"""Maximum number of seconds between two calls."""

TIMED_OUT = "timeout"
"""Part of the text of torch's error for a call without a timely answer."""


class Watched:
    """An agent that is called regularly.

    Args:
        address: the agent's address.
        when_lost: called once, with the reason, in an RPC thread, when it can no longer be reached.
    """

    def __init__(self, address: Address, when_lost: Callable[[str], Any]) -> None:
        self.address = address
        self._when_lost = when_lost
        self._is_called = self._is_known = self._is_late = False

    def call(self, timeout: float) -> None:
        """Call it, unless the previous call is still unanswered."""
        if self._is_called:
            return
        self._is_called = True
        called = rpc.rpc_async(self.address.name, torch.neg, args=(torch.zeros(()),), timeout=timeout)
        called.add_done_callback(self._answered)

    def _answered(self, called: Any) -> None:
        try:
            called.wait()
        except RuntimeError as error:
            is_late = TIMED_OUT in str(error)
            if not self._is_known:  # it can call here, and cannot be called: nothing can be said of it
                return
            if not is_late or self._is_late:
                self._when_lost(str(error))
                return
            self._is_late = True
        else:
            self._is_known, self._is_late = True, False
        self._is_called = False


class Vigil:
    """Calls agents on other machines, in a separate thread.

    Args:
        lost_after: seconds of silence after which an agent counts as lost.
    """

    def __init__(self, lost_after: float) -> None:
        self._timeout = lost_after / 2
        self._interval = min(INTERVAL, lost_after / 4)
        self._watched: dict[str, Watched] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reap-vigil", daemon=True)
        self._thread.start()

    def watch(self, address: Address, when_lost: Callable[[str], Any]) -> None:
        """Start to call an agent regularly; see `Watched`."""
        self._watched[address.name] = Watched(address, when_lost)

    def forget(self, address: Address) -> None:
        """Stop calling an agent."""
        self._watched.pop(address.name, None)

    def close(self) -> None:
        """Stop calling all agents."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._interval):
            for watched in list(self._watched.values()):
                with contextlib.suppress(RuntimeError):  # it was forgotten just now
                    watched.call(self._timeout)
