"""Weight transfer by Ray: the sender puts weights into the object store, and a small actor tells receivers about the newest.

sender: put(worker, parcel) ---> newest of each, a thread ---> ray.put, once for all ---> board.post
receiver: a thread  <------------------------- its node's copy <----------------------- board.newer
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from reap import optional
from reap.errors import ClosedError
from reap.weights.copied_mailbox import Parcel
from reap.weights.engines.ray_board import WeightBoard
from reap.workers.ray.actor import accept_memory_that_is_only_read
from reap.workers.ray.channel import as_bytes
from reap.workers.ray.cluster import Cluster

CLOSE_TIMEOUT = 5.0
"""Seconds for a thread to return from a call."""


class Newest:
    """Delivers parcels in a thread, one at a time; waiting ones are replaced by newer ones of the same key.

    Args:
        deliver: called with a key and its parcel; an exception ends the thread.
    """

    def __init__(self, deliver: Callable[[Any, Parcel], Any]) -> None:
        self._deliver = deliver
        self._waiting: dict[Any, Parcel] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="reap-ray-weights", daemon=True)
        self._thread.start()

    def put(self, key: Any, parcel: Parcel) -> None:
        """Queue a parcel for delivery."""
        with self._changed:
            self._waiting[key] = parcel
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                self._deliver(*item)
        except BaseException as error:  # noqa: BLE001  Ray was shut down, or whoever gets them is gone
            self.error = error

    def _next(self) -> tuple[Any, Parcel] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            key = next(iter(self._waiting))
            return key, self._waiting.pop(key)

    def close(self) -> None:
        """Stop delivering; a second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT)


class RaySending:
    """The sender's end over Ray; see `Sending`.

    Args:
        workers: the receivers.
        cluster: the connection to Ray.
    """

    def __init__(self, workers: Collection[int], cluster: Cluster) -> None:
        self._cluster, self._ray = cluster, cluster.ray
        context = self._ray.get_runtime_context()
        name = f"reap-weights-{secrets.token_hex(8)}"
        self._board = self._ray.remote(num_cpus=0, max_concurrency=1000)(WeightBoard).options(name=name).remote()
        self.ways: Mapping[int, RayWay] = {
            worker: RayWay(name, context.namespace, context.gcs_address, worker) for worker in workers
        }
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._newest = Newest(self._post)

    def put(self, worker: int, parcel: Parcel) -> None:
        """Send weights, which replace waiting ones; see `Sending`."""
        self._newest.put(worker, parcel)

    def _post(self, worker: int, parcel: Parcel) -> None:
        reference = next((own for block, own in self._kept.values() if block is parcel.block), None)
        if reference is None:
            reference = self._ray.put(as_bytes(parcel.block))
        self._ray.get(self._board.post.remote(worker, parcel.version, parcel.extra, [reference]))
        self._kept[worker] = parcel.block, reference  # those before are given back only now

    def close(self) -> None:
        """Stop sending; see `Sending`."""
        self._newest.close()
        self._kept.clear()
        self._cluster.kill(self._board)


@dataclass(frozen=True)
class RayWay:
    """A way over Ray; see `Way`.

    Attributes:
        name: the board's name.
        namespace: the namespace of the name.
        address: the cluster's address.
        worker: the receiver.
    """

    name: str
    namespace: str
    address: str
    worker: int

    def follow(self, take: Callable[[Parcel], Any], when_cut_off: Callable[[], Any]) -> RayFollowing:
        """Start to receive weights; see `Way`."""
        ray: Any = optional.load("ray", "RayWeightSyncScheme")
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False)
        try:
            board = ray.get_actor(self.name, namespace=self.namespace)
        except ValueError as error:
            raise ClosedError("the sender of these weights has shut down, or is gone") from error
        accept_memory_that_is_only_read()
        return RayFollowing(ray, board, self.worker, take, when_cut_off)


class RayFollowing:
    """The receiver's end over Ray; see `Following`.

    Args:
        ray: the module.
        board: the sender's board.
        worker: the receiver.
        take: called with weights.
        when_cut_off: called when no more weights will come.
    """

    def __init__(
        self, ray: Any, board: Any, worker: int, take: Callable[[Parcel], Any], when_cut_off: Callable[[], Any]
    ) -> None:
        self._ray, self._board, self._worker = ray, board, worker
        self._take, self._when_cut_off = take, when_cut_off
        self._name = secrets.token_hex(8)
        self._thread = threading.Thread(target=self._run, name="reap-ray-weights", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        serial = 0
        with suppress(BaseException):  # the board is gone, or Ray was shut down
            while (found := self._ray.get(self._board.newer.remote(self._worker, serial, self._name))) is not None:
                serial, version, extra, [reference] = found
                self._take(Parcel(version, self._ray.get(reference), extra))
        self._when_cut_off()

    def close(self) -> None:
        """Stop receiving; see `Following`."""
        with suppress(Exception):  # the board is gone
            self._board.leave.remote(self._name)
        self._thread.join(CLOSE_TIMEOUT)
