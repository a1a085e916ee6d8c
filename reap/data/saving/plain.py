"""Encodes data as tensors, numbers, strings, lists and dicts, for files that are read without running code.

TensorDict, nested or lazily stacked; objects in it; lists, tuples and dicts of all that  --encoded-->  plain data  --decoded-->
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor, is_tensorclass, lazy_stack

from reap.data.storages.schema import known_class
from reap.data.storages.trees import is_named
from reap.recording.objects import from_state, stacked, to_state, unstacked

NO_CLASSES: Mapping[str, Any] = {}


def encoded(value: Any) -> Any:
    """Encode data as plain data, in new memory.

    Raises:
        TypeError: something in it is neither a tensor, nor a TensorDict, nor plain data.

    Example:
        >>> decoded(encoded((TensorDict({"a": torch.ones(2)}, [2]), {"b": 1})))[0]["a"]
        tensor([1., 1.])
    """
    if is_non_tensor(value):
        shape = tuple(value.batch_size)
        return {"kind": "objects", "shape": list(shape), "value": [to_state(one) for one in unstacked(value, shape).flat]}
    if is_tensorclass(value):
        entries = encoded(value._tensordict)  # pyright: ignore[reportPrivateUsage]
        return {"kind": "tensorclass", "class": type(value).__name__, "value": entries}
    if isinstance(value, TensorDictBase):
        return _encoded_tensordict(value)
    if type(value) in {list, tuple} or is_named(type(value)):
        return _encoded_items(value)
    if type(value) is dict:
        return {"kind": "pairs", "value": [[to_state(name), encoded(item)] for name, item in value.items()]}
    return {"kind": "state", "value": to_state(value)}


def _encoded_items(value: Any) -> dict[str, Any]:
    items = [encoded(item) for item in value]
    if is_named(type(value)):
        return {"kind": "named", "class": type(value).__name__, "value": items}
    return {"kind": "items", "tuple": type(value) is tuple, "value": items}


def _encoded_tensordict(value: TensorDictBase) -> dict[str, Any]:
    if isinstance(value, LazyStackedTensorDict):
        return {"kind": "stack", "dim": value.stack_dim, "value": [encoded(item) for item in value.tensordicts]}
    return {
        "kind": "tensordict",
        "batch_size": list(value.batch_size),
        "names": list(value.names) if value._has_names() else None,  # pyright: ignore[reportPrivateUsage]
        "device": None if value.device is None else str(value.device),
        "value": {name: encoded(item) for name, item in value.items()},
    }


def decoded(state: Mapping[str, Any], known: Mapping[str, Any] = NO_CLASSES) -> Any:
    """Decode a result of `encoded`, into new memory.

    Args:
        state: a result of `encoded`.
        known: the tensorclasses and named tuples that can be in it, by name.

    Raises:
        SpecMismatch: it contains another class.
    """
    return _DECODE[state["kind"]](state, known)


def _tensordict(state: Mapping[str, Any], known: Mapping[str, Any]) -> TensorDict:
    entries = {name: decoded(item, known) for name, item in state["value"].items()}
    device = None if state["device"] is None else torch.device(state["device"])
    return TensorDict(entries, state["batch_size"], device=device, names=state["names"])


def _objects(state: Mapping[str, Any], _known: Mapping[str, Any]) -> Any:
    objects = np.empty(state["shape"], object)
    for index, value in zip(np.ndindex(*state["shape"]), state["value"], strict=True):
        objects[index] = from_state(value)
    return stacked(objects)


def _of_class(state: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    return known_class(state["class"], known).from_tensordict(decoded(state["value"], known))


def _named(state: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    return known_class(state["class"], known, "named tuple")(*[decoded(item, known) for item in state["value"]])


def _items(state: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    items = [decoded(item, known) for item in state["value"]]
    return tuple(items) if state["tuple"] else items


_DECODE: Mapping[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "objects": _objects,
    "tensorclass": _of_class,
    "stack": lambda state, known: lazy_stack([decoded(item, known) for item in state["value"]], state["dim"]),
    "tensordict": _tensordict,
    "items": _items,
    "named": _named,
    "pairs": lambda state, known: {from_state(name): decoded(item, known) for name, item in state["value"]},
    "state": lambda state, _known: from_state(state["value"]),
}
