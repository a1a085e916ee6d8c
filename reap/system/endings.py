"""Callbacks when an object is freed, without running Python code.

An exception from a signal handler, such as Ctrl-C, may be raised in any line of Python, and in the callback of a weak reference
it would be lost. Here callbacks are functions written in C, and the reference itself carries the data they need.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from operator import methodcaller
from typing import Any, Generic, TypeVar
from weakref import ref

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R", bound=ref[Any])

FEWEST = 64
"""Number of references among which freed objects are not looked for."""


class Numbered(ref[T]):
    """A weak reference with a number."""

    __slots__ = ("number",)
    number: int


def numbered(one: T, number: int, ended: Callable[[Any], Any] | None = None) -> Numbered[T]:
    """A reference to an object; keep it until the object is freed.

    Args:
        one: the object.
        number: the number that the reference carries.
        ended: called with the reference when the object is freed; a function written in C, such as `append` of a list.

    Example:
        >>> class Lease: ...
        >>> ended, lease = [], Lease()
        >>> kept = numbered(lease, 3, ended.append)
        >>> del lease
        >>> ended[0].number
        3
    """
    made = Numbered(one, ended)
    made.number = number
    return made


class KeptReferences(dict[Any, R]):
    """References by key; from time to time those to freed objects are dropped.

    That takes out one entry after the other, so nothing is lost that another thread adds meanwhile, and a pass that Ctrl-C ends
    leaves less to the next one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._room = FEWEST

    def keep(self, key: Any, reference: R) -> None:
        """Store a reference. Where several threads do so without a lock, no key may come twice."""
        self[key] = reference
        if len(self) > self._room:
            for known in list(self):
                found = self.get(known)
                if found is not None and found() is None:
                    self.pop(known, None)
            self._room = 2 * len(self) + FEWEST


class _Ending(ref[Any]):
    __slots__ = ("run",)
    run: Callable[[], Any]


_run = methodcaller("run")
_endings: KeptReferences[_Ending] = KeptReferences()
_number = count()


def at_end(one: object, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function written in C when an object is freed, but not at interpreter exit.

    Args:
        one: the object.
        function: for example `os.close`.
        arguments: its arguments.
    """
    ending = _Ending(one, _run)
    ending.run = partial(function, *arguments)
    _endings.keep(next(_number), ending)


class WeakValues(Generic[K, T]):
    """Objects by key; the objects are not kept alive."""

    def __init__(self) -> None:
        self._values: KeptReferences[ref[T]] = KeptReferences()

    def get(self, key: K) -> T | None:
        """Return the object under a key, if there is one."""
        found = self._values.get(key)
        return None if found is None else found()

    def setdefault(self, key: K, one: T) -> T:
        """Return the object under a key; if there is none, store this one."""
        known = self.get(key)
        if known is not None:
            return known
        self._values.keep(key, ref(one))
        return one
