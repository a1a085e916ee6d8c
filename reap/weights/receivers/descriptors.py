"""Brings the descriptors of a weight sync scheme from the sender's process to a receiver's.

sender: descriptors(worker)  ---- a child of multiprocessing: DupFd, in the scheme's pickle --->  `ReceiverDescriptors`
                             ---- a fork: os.dup ----------------------------------------------->  `ReceiverDescriptors`
                             ---- another launcher: attach(descriptors) ------------------------>  `ReceiverDescriptors`
receiver: connect() chooses its own and closes the others
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import reduction
from typing import Any
from weakref import finalize

from reap.errors import OptionError
from reap.weights.receivers.wakeup import close_all


class ReceiverDescriptors:
    """Descriptors by receiver: those of its wakeup, then those of its mailbox. They are closed with this object.

    Args:
        by_worker: the descriptors, owned by this object from now on.
    """

    def __init__(self, by_worker: Mapping[int, Sequence[int]]) -> None:
        self._by_worker = dict(by_worker)
        self.close = finalize(self, close_all, tuple(fd for several in by_worker.values() for fd in several))

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_worker)

    def __len__(self) -> int:
        return len(self._by_worker)

    def take(self, worker: int) -> tuple[int, list[int]]:
        """Keep those of one receiver.

        Returns:
            Its wakeup's, which is still closed with this object, and its mailbox's, which belong to the caller.
        """
        wakeup, *mailbox = self._by_worker.pop(worker)
        self.close.detach()
        close_all(tuple(fd for several in self._by_worker.values() for fd in several))
        self._by_worker = {}
        self.close = finalize(self, close_all, (wakeup,))
        return wakeup, mailbox


def distributed(descriptors: Sequence[int], workers: Sequence[int]) -> ReceiverDescriptors:
    """Split descriptors evenly between these receivers.

    Raises:
        OptionError: they cannot be split evenly.
    """
    each, rest = divmod(len(descriptors), max(len(workers), 1))
    if rest or not each:
        raise OptionError(f"attach: expected the descriptors of {len(workers)} receivers, got {len(descriptors)} descriptors")
    return ReceiverDescriptors({worker: list(descriptors[i * each : (i + 1) * each]) for i, worker in enumerate(workers)})


def duplicated(by_worker: Mapping[int, Sequence[int]]) -> ReceiverDescriptors:
    """Copies of descriptors, for a forked child with a copy of the sender's object."""
    return ReceiverDescriptors({worker: [os.dup(fd) for fd in several] for worker, several in by_worker.items()})


def send_with_multiprocessing(kind: type[Any]) -> None:
    """Make pickles for multiprocessing's child processes include the descriptors of a scheme; no other pickle can.

    Args:
        kind: a class of schemes, with `descriptors_by_worker` and `attach`.
    """
    reduction.register(kind, _reduced)


def _reduced(scheme: Any) -> tuple[Any, ...]:
    ends = {worker: [reduction.DupFd(fd) for fd in several] for worker, several in scheme.descriptors_by_worker().items()}
    return _rebuilt, (type(scheme), scheme.__getstate__(), ends)


def _rebuilt(kind: type[Any], state: dict[str, Any], ends: Mapping[int, list[Any]]) -> Any:
    scheme: Any = object.__new__(kind)
    scheme.__setstate__(state)
    if ends:
        scheme.attach([end.detach() for several in ends.values() for end in several])
    return scheme
