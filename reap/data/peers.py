"""Relations to torchrl's classes, if torchrl is loaded: what its checks accept, and what to use instead of its objects.

torchrl's parameter schedulers, trainers and checks ask `isinstance(x, Sampler)` and `isinstance(x, ReplayBuffer)`.
"""

from __future__ import annotations

import sys
from typing import Any


def torchrl_class(name: str) -> Any:
    """A class of `torchrl.data.replay_buffers`; None if torchrl is not loaded."""
    return getattr(sys.modules.get("torchrl.data.replay_buffers"), name, None)


def count_as_torchrls(kind: type[Any], name: str) -> None:
    """Register a class as a virtual subclass of an abstract class of torchrl, if torchrl is loaded."""
    theirs = torchrl_class(name)
    if theirs is not None and not issubclass(kind, theirs):
        theirs.register(kind)


def conversion(given: Any) -> str:
    """Text for an error: what to use instead of a torchrl object; empty for any other object.

    Example:
        >>> conversion(3)
        ''
    """
    kind = given if isinstance(given, type) else type(given)
    if not kind.__module__.startswith("torchrl."):
        return ""
    return f"; that is torchrl's: use the class of this name from reap.data, with the same arguments ({kind.__name__})"
