"""Python objects in the data: values without fixed shape or dtype, in numpy arrays of objects next to the tensors.

A batch holds them as `NonTensorStack`, a state as tensors, numbers, strings, lists and dicts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import GraphInstance

from reap.errors import add_note
from reap.optional import tensordict as load_tensordict
from reap.recording.layout import Array

ATOMS: frozenset[type] = frozenset({type(None), str, int, float, bool})
"""Types whose values go into a state unchanged, and need no copy."""
_NUMPY: Mapping[torch.dtype | None, np.dtype[Any]] = {
    torch.from_numpy(np.zeros(0, name)).dtype: np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}
"""NumPy dtypes by torch dtype, so that copies can cast numbers."""


def copied(value: Any) -> Any:
    """A copy that shares nothing with the object; the copy of a tensor is an ordinary tensor even in inference mode.

    Raises:
        TypeError: the object cannot be copied.
    """
    if type(value) in ATOMS:
        return value
    if isinstance(value, torch.Tensor):
        with torch.inference_mode(mode=False):
            return value.detach().clone()
    try:
        return copy.deepcopy(value)
    except Exception as error:
        add_note(error, f"reap: an object of {type(value)} cannot be copied and recorded; leave it out of the data")
        raise


def tensor_of(value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A new tensor with an array's numbers, whatever the array's strides and byte order.

    Args:
        value: an array, a number, or lists of numbers.
        dtype: the tensor's dtype; None means the array's own.

    Raises:
        TypeError, ValueError: torch lacks the dtype, or nested lists have different lengths.

    Example:
        >>> tensor_of(np.arange(3, dtype=">i4")[::-1])
        tensor([2, 1, 0], dtype=torch.int32)
    """
    given = np.asarray(value)
    wanted = _NUMPY.get(dtype, given.dtype.newbyteorder("="))
    tensor = torch.from_numpy(np.array(given, wanted, order="C"))
    return tensor if dtype is None else tensor.to(dtype)


def copies_of(objects: Array) -> Array:
    """An array of copies of the objects in an array."""
    return _copies(objects, out=np.empty(objects.shape, object))


_copies = np.frompyfunc(copied, 1, 1)


def stacked(objects: Array) -> Any:
    """Objects `[*batch]` in tensordict's form: a `NonTensorStack`, or `NonTensorData` without dimensions."""
    tensordict = load_tensordict()
    if not objects.ndim:
        return tensordict.NonTensorData(objects.item())
    if objects.ndim > 1:
        return tensordict.NonTensorStack(*[stacked(part) for part in objects])
    return tensordict.NonTensorStack(*map(tensordict.NonTensorData, objects))


def unstacked(value: Any, shape: tuple[int, ...]) -> Array:
    """The objects `[*shape]` in an entry of a TensorDict."""
    objects = np.empty(shape, object)
    for index in np.ndindex(*shape):
        part = value
        for place in index:
            part = part[place]
        objects[index] = getattr(part, "data", part)
    return objects


def to_state(value: Any) -> Any:
    """Convert an object to tensors, numbers, strings, lists and dicts, from which `from_state` restores it.

    Raises:
        TypeError: it holds anything other than these, tuples, numpy arrays and gymnasium's graphs.

    Example:
        >>> from_state(to_state(("a", {"b": [1, None]})))
        ('a', {'b': [1, None]})
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if kind is dict:
        return {"kind": "dict", "value": [[to_state(name), to_state(item)] for name, item in value.items()]}
    if isinstance(value, np.ndarray | np.generic):
        if not value.dtype.isnative:
            return {"kind": "foreign", "value": [value.dtype.str, tensor_of(value)]}
        name = "array" if isinstance(value, np.ndarray) else "number"
        return {"kind": name, "value": tensor_of(value)}
    if kind in _SEQUENCES:
        return {"kind": _SEQUENCES[kind], "value": [to_state(item) for item in value]}
    raise TypeError(f"{kind} is no plain data")


def to_states(objects: Array) -> list[Any] | None:
    """The state of each object in an array, in flat order; None if any object has no state."""
    try:
        return [to_state(value) for value in objects.flat]
    except (TypeError, ValueError, RuntimeError):  # the latter two from torch, for arrays of a kind that it has not
        return None


def fill(objects: Array, states: list[Any]) -> None:
    """Restore objects from the result of `to_states`, into an array."""
    for index, state in zip(np.ndindex(*objects.shape), states, strict=True):
        objects[index] = from_state(state)


def from_state(state: Any) -> Any:
    """Restore an object from the result of `to_state`."""
    if isinstance(state, Mapping):
        return _FROM_STATE[state["kind"]](state["value"])
    return state.clone() if isinstance(state, torch.Tensor) else state


def _each(states: list[Any]) -> list[Any]:
    return [from_state(state) for state in states]


_SEQUENCES: Mapping[type, str] = {list: "list", tuple: "tuple", GraphInstance: "graph"}
_FROM_STATE: Mapping[str, Callable[[Any], Any]] = {
    "list": _each,
    "tuple": lambda states: tuple(_each(states)),
    "graph": lambda states: GraphInstance(*_each(states)),
    "dict": lambda pairs: {from_state(name): from_state(item) for name, item in pairs},
    "array": lambda tensor: tensor.clone().numpy(),
    "foreign": lambda parts: parts[1].numpy().astype(parts[0]),
    "number": lambda tensor: tensor.numpy()[()],
}
