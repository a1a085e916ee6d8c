"""Transforms: functions for data before they are written, and functions for samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reap.data.storages.base import Storage
from reap.data.storages.items import as_given
from reap.data.storages.ring.control import TRANSFORMS
from reap.errors import OptionError

Function = Callable[[Any], Any]


class Transforms:
    """The functions on the way into a buffer and out of it.

    An object with `forward` changes samples, one with `inv` changes data that are written, one with both does both. A function
    changes data that are written if they have more batch dimensions than the storage and the function brings them to these
    (`lambda data: data.reshape(-1)`), and samples otherwise. The first such batch decides, and that is noted in the storage's
    words, for it may be written in another process: bit 0 says that it was decided, bit i + 1 that function i flattens.

    Args:
        transform: the first; None for none yet.
        write_transform: a function that changes data that are written, after that one; None for none.

    Raises:
        OptionError: see `append` and `append_write`.
    """

    def __init__(self, transform: Any = None, write_transform: Any = None) -> None:
        self._writes: list[Function] = []
        self._reads: list[tuple[Function, int]] = []
        self._functions: list[Function] = []
        if transform is not None:
            self.append(transform)
        if write_transform is not None:
            self.append_write(write_transform)

    def append_write(self, function: Any) -> None:
        """Add a transform of data that are written, after those that are there.

        Raises:
            OptionError: no function.
        """
        _require(function, "write_transform", callable(function))
        self._writes.append(function)

    def append(self, transform: Any) -> None:
        """Add a transform after those that are there.

        Raises:
            OptionError: neither a function nor an object with `forward` or `inv`.
        """
        forward, inverse = getattr(transform, "forward", None), getattr(transform, "inv", None)
        if forward is None and inverse is None:
            _require(transform, "transform", callable(transform))
            self._functions.append(transform)
            self._reads.append((transform, 1 << len(self._functions)))
        if inverse is not None:
            self._writes.insert(0, inverse)
        if forward is not None:
            self._reads.append((transform if callable(transform) else forward, 0))

    def before_write(self, data: Any, storage: Storage) -> Any:
        """These data, as they are written."""
        for function in self._writes:
            data = storage.together(function(as_given(data)))
        decided = storage.control.words[TRANSFORMS]
        if self._functions and not decided and data.ndim > storage.ndim:
            return self._decide(data, storage)
        for bit, function in enumerate(self._functions, start=1):
            data = storage.together(function(as_given(data))) if decided >> bit & 1 else data
        return data

    def before_edit(self, data: Any, storage: Storage, dims: int) -> Any:
        """Data `[*batch]` that replace others, as they are written.

        Args:
            data: the data of the user.
            storage: where they go.
            dims: dimensions of the batch.
        """
        decided = storage.control.words[TRANSFORMS]
        flattening = [function for bit, function in enumerate(self._functions, start=1) if decided >> bit & 1]
        for function in (*self._writes, *flattening):
            data = storage.together(function(as_given(data)), dims)
        return data

    def _decide(self, data: Any, storage: Storage) -> Any:
        decided = 1
        for bit, function in enumerate(self._functions, start=1):
            if data.ndim > storage.ndim and getattr(changed := function(data), "ndim", None) == storage.ndim:
                data, decided = changed, decided | 1 << bit
        storage.control.words[TRANSFORMS] = decided
        return data

    def after_read(self, sample: Any, storage: Storage) -> Any:
        """This sample, as the caller gets it."""
        decided = storage.control.words[TRANSFORMS]
        for function, bit in self._reads:
            sample = sample if decided & bit else function(sample)
        return sample

    @property
    def reads(self) -> bool:
        """Whether samples may go through a function."""
        return bool(self._reads)


def on_samples(transform: Any) -> Any:
    """The function that changes samples.

    Raises:
        OptionError: neither a function nor an object with `forward`.
    """
    forward = getattr(transform, "forward", None)
    _require(transform, "transform", callable(transform) or forward is not None)
    return transform if callable(transform) else forward


def _require(value: Any, name: str, fits: bool) -> None:
    if not fits:
        raise OptionError(
            f"{name}: expected a function, or an object with forward or inv, got {type(value).__name__}: {value!r}"
        )
