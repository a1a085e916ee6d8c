"""Transforms: functions that change data before they are written, and functions that change samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from tensordict import is_tensor_collection

from reap.data.storages.base import Storage
from reap.data.storages.items import as_given
from reap.data.storages.ring.control import TRANSFORMS
from reap.errors import OptionError

Function = Callable[[Any], Any]


class Step(NamedTuple):
    """One transform of a buffer.

    Attributes:
        transform: the object that was given.
        read: changes samples; None for nothing.
        write: changes written data; None for nothing.
        number: the number of a plain function, counted from 1, which changes either; 0 for objects.
    """

    transform: Any
    read: Function | None
    write: Function | None
    number: int = 0


class Transforms:
    """The transforms of a buffer, in the order in which samples pass through them.

    An object with `forward` changes samples, one with `inv` changes written data, one with both does both; written data pass
    through the last one first. A function changes written data if these have more batch dimensions than the storage and the
    function reduces them to the storage's (`lambda data: data.reshape(-1)`), and samples otherwise. The first such batch
    decides. The decision is kept in the storage's words, because another process may write that batch: bit 0 says that it
    was made, bit i that function i flattens.

    Args:
        transform: the first transform, if any.
        write_transform: a function that changes written data after that one; None for none.

    Raises:
        OptionError: see `append` and `append_write`.
    """

    def __init__(self, transform: Any = None, write_transform: Any = None) -> None:
        self._steps: list[Step] = []
        self._writes: list[Function] = []
        self._reads: list[tuple[Function, int]] = []
        self._functions: list[tuple[int, Function]] = []
        self._last: list[Function] = []
        self._numbers = 0
        if transform is not None:
            self.append(transform)
        if write_transform is not None:
            self.append_write(write_transform)

    def append_write(self, function: Any) -> None:
        """Append a transform of written data.

        Raises:
            OptionError: not a function.
        """
        _require(function, "write_transform", callable(function))
        self._last.append(function)
        self._arrange()

    def append(self, transform: Any, *, invert: bool = False) -> None:
        """Append a transform; see `insert`."""
        self.insert(len(self._steps), transform, invert=invert)

    def insert(self, index: int, transform: Any, *, invert: bool = False) -> None:
        """Insert a transform before the one with this index.

        Args:
            index: its index.
            transform: a function, or an object.
            invert: `forward` changes written data, and `inv` changes samples.

        Raises:
            OptionError: neither a function nor an object with `forward` or `inv`, or an invalid index.
        """
        count = len(self._steps)
        if not -count <= index <= count:
            raise OptionError(f"insert_transform: expected an index from {-count} to {count}, got {index}")
        forward, inverse = getattr(transform, "forward", None), getattr(transform, "inv", None)
        if forward is None and inverse is None:
            _require(transform, "transform", callable(transform))
            if invert:
                step = Step(transform, None, transform)
            else:
                self._numbers += 1
                step = Step(transform, transform, None, self._numbers)
        else:
            ahead = transform if forward is not None and callable(transform) else forward
            ahead, inverse = _for_any_data(transform, "forward", ahead), _for_any_data(transform, "inv", inverse)
            step = Step(transform, inverse, ahead) if invert else Step(transform, ahead, inverse)
        self._steps.insert(index, step)
        self._arrange()

    def _arrange(self) -> None:
        steps = self._steps
        self._writes = [*(step.write for step in reversed(steps) if step.write is not None), *self._last]
        self._reads = [(step.read, 1 << step.number & ~1) for step in steps if step.read is not None]
        self._functions = [(step.number, step.transform) for step in steps if step.number]

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Any]:
        return (step.transform for step in self._steps)

    def __getitem__(self, index: int) -> Any:
        return self._steps[index].transform

    def __repr__(self) -> str:
        return f"Transforms({', '.join(repr(step.transform) for step in self._steps)})"

    def before_write(self, data: Any, storage: Storage) -> Any:
        """Data after the write transforms; None if a transform keeps them for later."""
        for function in self._writes:
            changed = function(as_given(data))
            if changed is None:
                return None
            data = storage.together(changed)
        decided = storage.control.words[TRANSFORMS]
        if self._functions and not decided and data.ndim > storage.ndim:
            return self._decide(data, storage)
        for number, function in self._functions:
            data = storage.together(function(as_given(data))) if decided >> number & 1 else data
        return data

    def before_edit(self, data: Any, storage: Storage, dims: int) -> Any:
        """Data `[*batch]` that replace others, after the write transforms.

        Args:
            data: the data of the user.
            storage: the storage to which they are written.
            dims: dimensions of the batch.
        """
        decided = storage.control.words[TRANSFORMS]
        flattening = [function for number, function in self._functions if decided >> number & 1]
        for function in (*self._writes, *flattening):
            data = storage.together(function(as_given(data)), dims)
        return data

    def _decide(self, data: Any, storage: Storage) -> Any:
        decided = 1
        for number, function in self._functions:
            if data.ndim > storage.ndim and getattr(changed := function(data), "ndim", None) == storage.ndim:
                data, decided = changed, decided | 1 << number
        storage.control.words[TRANSFORMS] = decided
        return data

    def after_read(self, sample: Any, storage: Storage) -> Any:
        """A sample after the transforms."""
        decided = storage.control.words[TRANSFORMS]
        for function, bit in self._reads:
            sample = sample if decided & bit else function(sample)
        return sample

    @property
    def reads(self) -> bool:
        """Whether samples may pass through a plain function."""
        return bool(self._reads)


def on_samples(transform: Any) -> Any:
    """The function that changes samples.

    Raises:
        OptionError: neither a function nor an object with `forward`.
    """
    forward = getattr(transform, "forward", None)
    _require(transform, "transform", callable(transform) or forward is not None)
    return _for_any_data(transform, "forward", transform if callable(transform) else forward)


def _for_any_data(transform: Any, name: str, call: Any) -> Any:
    """A method of a tensordict module that also accepts lists and dicts, which `dispatch` would take for the first value."""
    is_dispatched = hasattr(transform, "in_keys") and hasattr(getattr(transform, name, None), "__wrapped__")
    return partial(_dispatched, transform, name) if is_dispatched else call


def _dispatched(transform: Any, name: str, data: Any) -> Any:
    if not is_tensor_collection(data):
        return getattr(transform, name).__wrapped__(transform, data)
    return transform(data) if name == "forward" else transform.inv(data)


def _require(value: Any, name: str, fits: bool) -> None:
    if not fits:
        raise OptionError(
            f"{name}: expected a function, or an object with forward or inv, got {type(value).__name__}: {value!r}"
        )
