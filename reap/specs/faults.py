"""Faults: how a value differs from its spec, in words.

A spec checks a value and returns a `Fault` or None. `is_in` needs no more; `validate` turns the fault into an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from reap.keys import Key, NestedKey, as_key, plain

if TYPE_CHECKING:
    from collections.abc import Iterable


class Fault(NamedTuple):
    """How a value differs from its spec: the words for both, a remedy, and the place."""

    expected: str
    found: str
    advice: str = ""
    key: Key = ()

    def below(self, name: str) -> Fault:
        """The same fault, seen from the mapping that holds the value under `name`."""
        return self._replace(key=(name, *self.key))


def message(fault: Fault, key: NestedKey, where: str) -> str:
    """The text of the error for a fault.

    Example:
        >>> fault = Fault("shape (3,)", "shape (4,)", "Look at the wrapper.", ("position",))
        >>> message(fault, "observation", "worker 2")
        "worker 2: key ('observation', 'position'): expected shape (3,), found shape (4,). Look at the wrapper."
    """
    path = (as_key(key) if key else ()) + fault.key
    places = [where] if where else []
    if path:
        places.append(f"key {plain(path)}")
    lead = "".join(f"{place}: " for place in places)
    advice = f" {fault.advice}" if fault.advice else ""
    return f"{lead}expected {fault.expected}, found {fault.found}.{advice}"


def dtype_name(dtype: torch.dtype) -> str:
    """The name without its package: `"float32"`."""
    return str(dtype).removeprefix("torch.")


def shape_text(shape: Iterable[int]) -> str:
    """A shape as a tuple: `"(3,)"`."""
    return str(tuple(shape))


def layout_text(shape: Iterable[int], dtype: torch.dtype) -> str:
    """Shape and dtype as they read in an error: `"shape (3,) and dtype float32"`."""
    return f"shape {shape_text(shape)} and dtype {dtype_name(dtype)}"


def first_index(flags: torch.Tensor) -> tuple[int, ...]:
    """The index of the first True of a boolean tensor that has one."""
    return tuple(int(i) for i in flags.nonzero()[0])


def comparable(values: torch.Tensor) -> torch.Tensor:
    """Values on which torch can compute: it has no arithmetic for uint16, uint32, bool and floats of 8 bits."""
    if values.dtype.is_floating_point:
        return values.float() if values.dtype.itemsize == 1 else values
    return values.to(torch.int64)


def range_fault(value: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> Fault | None:
    """The first element that is NaN or outside [low, high], which broadcast to the value's shape."""
    numbers = comparable(value)
    least = comparable(low).to(value.device).broadcast_to(value.shape)
    most = comparable(high).to(value.device).broadcast_to(value.shape)
    inside = (numbers >= least) & (numbers <= most)
    if bool(inside.all()):
        return None
    index = first_index(~inside)
    at = f" at index {index}" if index else ""
    number = numbers[index].item()
    name = "NaN" if number != number else str(number)  # noqa: PLR0124  only NaN differs from itself
    return Fault(f"values in [{least[index].item()}, {most[index].item()}]", f"{name}{at}")


def whole_fault(value: torch.Tensor) -> Fault | None:
    """The first element of a floating tensor that is not a whole number."""
    if not value.dtype.is_floating_point:
        return None
    broken = value != value.round()
    if not bool(broken.any()):
        return None
    index = first_index(broken)
    at = f" at index {index}" if index else ""
    return Fault("whole numbers", f"{value[index].item()}{at}")
