"""What cannot be sent is named, with the way to it."""

from __future__ import annotations

import gc
import pickle
import threading
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch

from reap.errors import OptionError
from reap.workers.pickling import blaming, dumps, encode, encode_apart

LOCK = threading.Lock()


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


def by_variable() -> Any:
    lock = LOCK
    return lambda: lock


def by_default() -> Any:
    def make(*, lock: Any = LOCK) -> Any:
        return lock

    return make


def by_two_functions() -> Any:
    lock = LOCK

    def inner() -> Any:
        return lock

    return lambda: inner() or 1


def by_a_local_class() -> Any:
    class Local:
        lock = LOCK

    return Local


INSIDE = "; create it inside the function"
OUTSIDE = "; leave it out, or build it in the worker"
CULPRITS: dict[str, tuple[Any, str, str]] = {
    "itself": (LOCK, "it is", OUTSIDE),
    "variable": (by_variable(), "its variable 'lock' is", INSIDE),
    "default": (by_default(), "its default of 'lock' is", OUTSIDE),
    "two functions": (by_two_functions(), "its variable 'inner', variable 'lock' is", INSIDE),
    "partial": (partial(print, 1, end=LOCK), "its argument 'end' is", OUTSIDE),
    "attribute": (Holder(LOCK), "its attribute 'held' is", OUTSIDE),
    "slot": (Slotted(LOCK), "its attribute 'held' is", OUTSIDE),
    "method": (Holder([0, LOCK]).method, "its object, attribute 'held', item 1 is", OUTSIDE),
    "containers": ({"a": [{"b": (0, LOCK)}]}, "its item 'a', item 0, item 'b', item 1 is", OUTSIDE),
    "local class": (by_a_local_class(), "its member 'lock' is", OUTSIDE),
}


@pytest.mark.parametrize("way", CULPRITS)
def test_the_way_to_the_culprit_is_shown(way: str) -> None:
    value, steps, remedy = CULPRITS[way]
    with pytest.raises(OptionError) as info:
        dumps(value, "create_env_fn")
    text = str(info.value)
    assert text.startswith(f"create_env_fn: cannot be sent to a worker: {steps} a _thread.lock (TypeError: cannot pickle")
    assert text.endswith(remedy)
    assert isinstance(info.value.__cause__, TypeError)


def test_a_global_is_named() -> None:
    space: dict[str, Any] = {"LOCK": LOCK, "__name__": "__main__"}
    exec("def make():\n    return [LOCK for _ in range(1)]", space)
    with pytest.raises(OptionError, match="its global 'LOCK' is a _thread.lock"):
        dumps(space["make"], "policy")


def test_a_cycle_has_an_end() -> None:
    cycle: list[Any] = [LOCK]
    cycle.insert(0, cycle)
    with pytest.raises(OptionError, match="its item 1 is a _thread.lock"):
        dumps(cycle, "options")


def test_an_object_whose_own_pickling_fails_is_named_with_its_complaint() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("I stay")

    with pytest.raises(OptionError, match=r"its item 'env' is a .*Stubborn \(RuntimeError: I stay\)"):
        dumps({"env": Stubborn()}, "options")


def test_functions_keep_the_name_of_their_file() -> None:
    def local() -> None: ...

    assert pickle.loads(dumps(local, "local")).__code__.co_filename == __file__


def test_plain_pickle_is_used_where_it_will_do() -> None:
    assert encode([1, "a"], "list").body == pickle.dumps([1, "a"], protocol=5)
    assert encode(lambda: 4, "function").load()() == 4


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2])
@pytest.mark.parametrize("encoding", [encode, encode_apart])
def test_tensors_whose_pickle_torch_cannot_read(dtype: torch.dtype, encoding: Any) -> None:
    numbers = torch.arange(6).to(dtype)
    whole, part, none = encoding((numbers, numbers[2:4], numbers[:0].clone()), "values").load()
    assert [value.dtype for value in (whole, part, none)] == [dtype] * 3
    assert whole.to(torch.int64).tolist() == [0, 1, 2, 3, 4, 5]
    assert part.to(torch.int64).tolist() == [2, 3]
    assert none.shape == (0,)
    whole[2] = 9
    assert part.to(torch.int64)[0].item() == 8 + (dtype != torch.float8_e5m2)  # one memory, as before; 9 is no float of 8 bits


def test_a_part_is_blamed_by_the_name_that_users_know() -> None:
    lock = threading.Lock()
    whole, parts = {"inside": [1, lock]}, [("numbers", [1, 2]), ("create_env_kwargs", {"lock": lock})]
    text = r"^create_env_kwargs: cannot be sent to a worker: its item 'lock' is a _thread.lock"
    with pytest.raises(OptionError, match=text), blaming(parts):
        dumps(whole, "make_handler")
    with pytest.raises(OptionError, match=r"^make_handler: "), blaming(parts[:1]):
        dumps(whole, "make_handler")


def test_an_error_keeps_nothing_of_its_callers() -> None:
    """The frames of those who call are free when the error is: a group that cannot send a log handler ends when dropped."""

    class Kept:
        pass

    def refused() -> ref[Kept]:
        kept = Kept()
        with suppress(OptionError):
            dumps(LOCK, "handler")
        return ref(kept)

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()
