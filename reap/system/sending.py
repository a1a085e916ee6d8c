"""Objects that are shared when sent to another process, but copied when merely pickled.

A pickle does not know its purpose: `copy.deepcopy`, `torch.save` and files need copies. So only the picklers that send to other
processes on this machine share: multiprocessing's (spawn, forkserver, queues, pools, and with them torch.multiprocessing), and
that of reap's own workers (`workers/pickling.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

Reduce = Callable[[Any], Any]


reducers: dict[type, Reduce] = {}
"""The function that reduces an object sent to another process, by class."""


class SharedWhenSent:
    """A class whose objects, including those of subclasses, are shared when sent to another process."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        reducers[cls] = _sent
        ForkingPickler.register(cls, _sent)

    def check_sending(self) -> None:
        """Raise OptionError if the object must not be shared; called before `share`."""

    @abstractmethod
    def share(self) -> Any:
        """Share the object with other processes."""


def _sent(shared: SharedWhenSent) -> Any:
    shared.check_sending()
    shared.share()
    return shared.__reduce_ex__(4)
