"""Weight transfer by torch.distributed: a gloo process group of two for each receiver.

    sender                                   receiver
      put ---> Outbox ---> thread ==== pair ====> thread ---> take

A process group is made when the receiver connects; weights put earlier wait until then.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reap.errors import ClosedError, OptionError
from reap.weights.copied_mailbox import Parcel
from reap.workers.gloo.memory import Memory
from reap.workers.gloo.outbox import Outbox
from reap.workers.gloo.pair import Pair
from reap.workers.gloo.rendezvous import FileMeeting, Invitation, Meeting, TcpMeeting, join, meet
from reap.workers.messages import Encoded

WEIGHTS = 0
TOPIC = b"weights"


@dataclass(frozen=True)
class GlooWay:
    """A way over gloo; see `Way`.

    Attributes:
        invitation: where to connect to the sender.
        timeout: seconds to connect.
    """

    invitation: Invitation
    timeout: float

    def follow(self, take: Callable[[Parcel], Any], when_cut_off: Callable[[], Any]) -> GlooFollowing:
        """Connect to the sender; see `Way`."""
        try:
            pair = join(self.invitation, self.timeout)
        except (RuntimeError, ConnectionError) as error:
            raise ClosedError(f"the sender of these weights has shut down, or cannot be reached: {error}") from error
        return GlooFollowing(pair, take, when_cut_off)


class GlooFollowing:
    """The receiver's end; see `Following`."""

    def __init__(self, pair: Pair, take: Callable[[Parcel], Any], when_cut_off: Callable[[], Any]) -> None:
        self._pair, self._take, self._when_cut_off = pair, take, when_cut_off
        self._thread = threading.Thread(target=self._run, name="reap-weights", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        memory = Memory()
        try:
            while True:
                body, [block] = self._pair.receive(memory).encoded
                version, extra = pickle.loads(body)
                self._take(Parcel(version, np.asarray(block), extra))
                del body, block
        except ConnectionError:
            self._when_cut_off()

    def close(self) -> None:
        """Stop receiving; see `Following`."""
        self._pair.hang_up()
        self._thread.join()
        self._pair.close()


class GlooSender:
    """The sender's end for one receiver.

    Args:
        meeting: the place at which the receiver connects.
        name: the name of the pair.
        timeout: seconds within which it must connect.
    """

    def __init__(self, meeting: Meeting, name: str, timeout: float) -> None:
        self._meeting, self._name, self._timeout = meeting, name, timeout
        self._outbox = Outbox()
        self._pair: Pair | None = None
        self._is_over = threading.Event()
        self._error: OptionError | None = None
        self._thread = threading.Thread(target=self._run, name=f"reap-weights-{name}", daemon=True)
        self._thread.start()

    def put(self, parcel: Parcel) -> None:
        """Send weights; see `Sending`."""
        if self._error is not None:
            raise self._error
        encoded = Encoded(pickle.dumps((parcel.version, parcel.extra)), [parcel.block])
        self._outbox.put(WEIGHTS, encoded, TOPIC)

    def _run(self) -> None:
        try:
            self._pair, _ = meet(self._meeting, self._name, self._timeout, self._why_nobody_comes)
        except OptionError as error:  # its versions
            self._error = error
        except (ConnectionError, TimeoutError):
            self._outbox.close()
        else:
            if not self._is_over.is_set():
                self._outbox.run(self._pair)

    def _why_nobody_comes(self) -> str | None:
        return "it is no longer wanted" if self._is_over.is_set() else None

    def close(self) -> None:
        """Stop sending; see `Sending`."""
        self._is_over.set()
        self._outbox.close()
        if self._pair is not None:
            self._pair.hang_up()
        self._thread.join()
        if self._pair is not None:
            self._pair.close()


class GlooSending:
    """The sender's end; see `Sending`.

    Args:
        workers: the numbers of the receivers.
        address: of the interface by which receivers on other machines reach this one; None for receivers on this machine.
        timeout: seconds within which they must connect.
    """

    def __init__(self, workers: Collection[int], address: str | None, timeout: float) -> None:
        self._meeting: Meeting = FileMeeting() if address is None else TcpMeeting(address, None)
        names = {worker: str(worker) for worker in workers}
        self.ways: Mapping[int, GlooWay] = {w: GlooWay(self._meeting.invitation(name), timeout) for w, name in names.items()}
        self._senders = {worker: GlooSender(self._meeting, name, timeout) for worker, name in names.items()}

    def put(self, worker: int, parcel: Parcel) -> None:
        """Send weights; see `Sending`."""
        self._senders[worker].put(parcel)

    def close(self) -> None:
        """Stop sending; see `Sending`."""
        for sender in self._senders.values():
            sender.close()
        self._meeting.close()
