"""What the pickler visits: what would travel, no more, and nothing is copied or refused on the way."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from reap.workers.visited import visit

NET = nn.Linear(1, 1)


def by_reference() -> Any:
    return NET


class Kept:
    def __init__(self, part: Any) -> None:
        self.part, self.lock, self.cycle = part, Lock(), self


class Dropped(Kept):
    def __getstate__(self) -> dict[str, Any]:
        return {}


class Raising(Kept):
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle of mine")


class Items(list[Any]):
    pass


MET: dict[str, tuple[Any, bool]] = {
    "closure": (lambda: NET, True),
    "function by name": (by_reference, False),
    "object with a lock": (Kept(NET), True),
    "what is left out": (Dropped(NET), False),
    "what cannot be pickled": (Raising(NET), False),
    "beside what cannot be pickled": ([Raising(1), (x for x in ()), NET], True),
    "items": (Items([{"net": NET}]), True),
    "a key": ({NET: 1}, True),
    "array of objects": (np.array([NET, None], dtype=object), True),
    "a class by name": (Kept, False),
}


@pytest.mark.parametrize("case", MET)
def test_what_is_met(case: str) -> None:
    value, expected = MET[case]
    assert (id(NET) in visit(value).objects) == expected
    assert (id(NET.weight) in visit(value).objects) == expected


def test_functions_by_value_are_known() -> None:
    def local() -> None: ...

    visited = visit([local, by_reference, Kept])
    assert (id(local) in visited.by_value, id(by_reference) in visited.by_value, id(Kept) in visited.by_value) == (
        True,
        False,
        False,
    )


def test_tensors_are_not_copied() -> None:
    class Loud(torch.Tensor):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError("it was taken apart")

    tensor = torch.zeros(2).as_subclass(Loud)
    assert id(tensor) in visit([tensor]).objects
