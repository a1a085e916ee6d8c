"""`OneByOne`: iterates over a buffer's samples one call at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class OneByOne:
    """An object that can be iterated over."""

    _iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def next(self) -> Any:
        """The next sample of an iteration over the buffer; None once after the last sample of an epoch."""
        if self._iterator is None:
            self._iterator = iter(self)
        sample = next(self._iterator, None)
        if sample is None:
            self._iterator = None
        return sample
