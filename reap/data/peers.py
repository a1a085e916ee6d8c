"""torchrl's classes, where a program has loaded torchrl: what it takes for its own, and what to use in place of its objects.

torchrl's parameter schedulers, trainers and checks ask `isinstance(x, Sampler)` and `isinstance(x, ReplayBuffer)`.
"""

from __future__ import annotations

import sys
from typing import Any


def torchrl_class(name: str) -> Any:
    """A class of `torchrl.data.replay_buffers`; None where torchrl is not loaded."""
    return getattr(sys.modules.get("torchrl.data.replay_buffers"), name, None)


def count_as_torchrls(kind: type[Any], name: str) -> None:
    """Let objects of a class count as those of an abstract class of torchrl, if torchrl is loaded."""
    theirs = torchrl_class(name)
    if theirs is not None and not issubclass(kind, theirs):
        theirs.register(kind)


def conversion(given: Any) -> str:
    """What to use in place of an object of torchrl's, as the end of an error text; empty for all else.

    Example:
        >>> conversion(3)
        ''
    """
    kind = given if isinstance(given, type) else type(given)
    if not kind.__module__.startswith("torchrl."):
        return ""
    return f"; that is torchrl's: use the class of this name from reap.data, with the same arguments ({kind.__name__})"
