"""Weight transfer by torch.distributed.rpc: receivers call the sender, and are answered when there are newer weights.

receiver: call(fetch, key, serial) -----> Publication of that key: waits for a parcel with another serial
          take(parcel) <----------------- the newest one
          call(fetch, ...) ------------->
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.distributed import rpc
from torch.futures import Future

from reap.errors import ClosedError
from reap.weights.copied_mailbox import Parcel
from reap.workers.messages import Encoded
from reap.workers.rpc import agent
from reap.workers.rpc.agent import LINGER, Address
from reap.workers.rpc.tensors import Tensors, unwrapped, wrapped

FOREVER = 0.0
"""The timeout of a call that is answered when there are new weights."""

PATIENCE = 5.0
"""Seconds for a sender to notice that a receiver leaves."""


class Publication:
    """The newest weights for one receiver, and its call that waits for newer ones.

    Args:
        key: authenticates the receiver.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._lock = threading.RLock()
        self._serial = 0
        self._parts: Tensors = ()
        self._call: Any = None
        self._known = 0
        _publications[key] = self

    def put(self, parcel: Parcel) -> None:
        """Publish the newest weights."""
        parts = wrapped(Encoded(pickle.dumps((parcel.version, parcel.extra)), [parcel.block.data]))
        with self._lock:
            self._serial, self._parts = self._serial + 1, parts
        self._answer()

    def fetch(self, call: Any, known: int) -> None:
        """Handle a call that waits for weights with a different serial."""
        with self._lock:
            self._call, self._known = call, known
        self._answer()

    def _answer(self) -> None:
        with self._lock:
            call, serial, parts = self._call, self._serial, self._parts
            if call is None or serial == self._known:
                return
            self._call = None
        call.set_result((serial, parts))

    def close(self) -> None:
        """Answer that no more weights will come."""
        with self._lock:
            _publications.pop(self._key, None)
            call, self._call, self._parts = self._call, None, ()
        if call is not None:
            call.set_result(None)


_publications: dict[str, Publication] = {}
"""The publications of this process, by key."""


@rpc.functions.async_execution
def fetch(key: str, known: int) -> Any:
    """Wait for weights: a serial and their parts, or None if no more will come. Called by receivers."""
    call: Any = Future()
    if publication := _publications.get(key):
        publication.fetch(call, known)
    else:
        call.set_result(None)
    return call


def forget(key: str) -> None:
    """Stop receiving weights. Called by receivers."""
    if publication := _publications.get(key):
        publication.close()


@dataclass(frozen=True)
class RpcWay:
    """A way over RPC; see `Way`.

    Attributes:
        sender: the address of the sender's agent.
        key: authenticates the receiver.
    """

    sender: Address
    key: str

    def follow(self, take: Callable[[Parcel], Any], when_cut_off: Callable[[], Any]) -> RpcFollowing:
        """Call the sender; see `Way`."""
        agent.shared.visit(self.sender)
        return RpcFollowing(self, take, when_cut_off)


class RpcFollowing:
    """The receiver's end: makes one call after the other, in RPC threads; see `Following`."""

    def __init__(self, way: RpcWay, take: Callable[[Parcel], Any], when_cut_off: Callable[[], Any]) -> None:
        self._way, self._take, self._when_cut_off = way, take, when_cut_off
        self._lock = threading.Lock()
        self._is_over = False
        self._fetch(0)

    def _fetch(self, known: int) -> None:
        with self._lock:
            if self._is_over:
                return
            called = rpc.rpc_async(self._way.sender.name, fetch, args=(self._way.key, known), timeout=FOREVER)
        called.add_done_callback(self._fetched)

    def _fetched(self, called: Any) -> None:
        try:
            answer = called.wait()
        except RuntimeError:
            answer = None
        if answer is None:
            self._when_cut_off()
            return
        serial, parts = answer
        body, [block] = unwrapped(parts)
        version, extra = pickle.loads(body)
        self._take(Parcel(version, np.asarray(block), extra))
        self._fetch(serial)

    def close(self) -> None:
        """Stop calling; the sender is told, so that it does not answer a receiver that is gone."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
        if not was_over:
            with contextlib.suppress(RuntimeError):  # it is gone
                rpc.rpc_sync(self._way.sender.name, forget, args=(self._way.key,), timeout=PATIENCE)
                time.sleep(LINGER)
            agent.shared.give_back()


class RpcSending:
    """The sender's end; see `Sending`.

    Args:
        workers: the numbers of the receivers.
        address: of the interface by which receivers on other machines reach this one; None for receivers on this machine.
    """

    def __init__(self, workers: Collection[int], address: str | None) -> None:
        own = agent.shared.take({}, is_local=address is None, address=address)
        keys = {worker: secrets.token_hex(16) for worker in workers}
        self._publications = {worker: Publication(key) for worker, key in keys.items()}
        self.ways: Mapping[int, RpcWay] = {worker: RpcWay(own, key) for worker, key in keys.items()}
        self._is_over = False

    def put(self, worker: int, parcel: Parcel) -> None:
        """Send weights; see `Sending`."""
        if self._is_over:
            raise ClosedError("this scheme is shut down")
        self._publications[worker].put(parcel)

    def close(self) -> None:
        """Stop sending; see `Sending`."""
        if not self._is_over:
            self._is_over = True
            for publication in self._publications.values():
                publication.close()
            agent.shared.give_back()
