"""`Watch`: polls workers on other machines, since no descriptor reports their ends.

A thread asks their launcher, notices workers that do not connect, and checks connected ones by calls (`Vigil`). It calls them
only if the agent was started here (`reap.workers.rpc.agent`): the user's agent only receives calls, because one of fixed size
has no lock on its list of other agents.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from reap.workers.rpc import agent
from reap.workers.rpc.line import Visitor
from reap.workers.rpc.remote_worker import RemoteWorker
from reap.workers.rpc.vigil import Vigil

LOOK = 0.1
"""Seconds between two checks."""


class Watch:
    """Polls the workers of a carrier.

    Args:
        workers: by number; the carrier changes them.
        lost_after: seconds of silence after which another machine counts as lost.
        ring: called after a change.
    """

    def __init__(self, workers: Mapping[int, RemoteWorker], lost_after: float, ring: Callable[[], Any]) -> None:
        self._workers, self._ring = workers, ring
        self._vigil = Vigil(lost_after) if agent.shared.is_ours else None
        self._visitors: dict[RemoteWorker, Visitor] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reap-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop polling."""
        self._is_over.set()
        self._thread.join()
        if self._vigil is not None:
            self._vigil.close()
            for visitor in self._visitors.values():
                agent.dismiss(visitor.address)

    def _run(self) -> None:
        while not self._is_over.wait(LOOK):
            for worker in list(self._workers.values()):
                self._look(worker)

    def _look(self, worker: RemoteWorker) -> None:
        if worker.is_released:
            self._forget(worker)
        elif (error := worker.missing()) is not None:
            worker.give_up(error)
        elif worker.has_ended:
            self._ring()
        elif worker.line.visitor is not None and worker not in self._visitors:
            self._keep_vigil(worker, worker.line.visitor)

    def _keep_vigil(self, worker: RemoteWorker, visitor: Visitor) -> None:
        is_reached = not visitor.address.is_of_one_machine or visitor.host == socket.gethostname()
        if self._vigil is None or not is_reached:
            return
        agent.admit(visitor.address)
        self._visitors[worker] = visitor

        def lose(reason: str) -> None:
            worker.lose(reason)
            self._ring()

        self._vigil.watch(visitor.address, lose)

    def _forget(self, worker: RemoteWorker) -> None:
        visitor = self._visitors.pop(worker, None)
        if visitor is not None and self._vigil is not None:
            self._vigil.forget(visitor.address)
            agent.dismiss(visitor.address)
