"""What is shared with another process where it is sent there, and copied where it is only pickled.

A pickle does not say what it is for: `copy.deepcopy`, `torch.save` and files keep copies. So those picklers are told that send
to other processes of this machine: multiprocessing's (spawn, forkserver, queues, pools, and with them torch.multiprocessing),
and that of reap's own workers (`workers/pickling.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

Reduce = Callable[[Any], Any]


reducers: dict[type, Reduce] = {}
"""How objects are taken apart that are sent to another process, by their class."""


class SharedWhenSent:
    """A class whose objects, and those of its subclasses, are shared when they are sent to another process."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        reducers[cls] = _sent
        ForkingPickler.register(cls, _sent)

    def check_sending(self) -> None:
        """Raise OptionError where it must not be shared, before it is."""

    @abstractmethod
    def share(self) -> Any:
        """Let other processes have it too."""


def _sent(shared: SharedWhenSent) -> Any:
    shared.check_sending()
    shared.share()
    return shared.__reduce_ex__(4)
