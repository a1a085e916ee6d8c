"""Writes that are broken off in the middle: nothing of them is seen, in whatever way one looks, and nothing else is hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data import LazyMemmapStorage, LazyTensorStorage, ListStorage, ReplayBuffer
from reap.data.storages.base import Storage
from reap.data.storages.ring.control import COUNT, WRITERS
from reap.errors import OptionError

SIZE = 12

KINDS: dict[str, Callable[[], Storage]] = {
    "ram": lambda: LazyTensorStorage(SIZE),
    "once": lambda: LazyTensorStorage(SIZE, observations_once=True),
    "rows": lambda: LazyTensorStorage(2 * SIZE, ndim=2),
    "files": lambda: LazyMemmapStorage(SIZE),
    "list": lambda: ListStorage(SIZE),
}

anywhere = pytest.mark.parametrize("kind", KINDS)


def frames(first: int, count: int, rows: bool = False) -> TensorDict:
    """Frames that say their number everywhere."""
    number = torch.arange(first, first + count).float()
    number = number.expand(2, count) if rows else number
    wide = number.unsqueeze(-1).expand(*number.shape, 5)
    return TensorDict({"number": number, "wide": wide, "next": {"wide": wide + 1}}, number.shape)


class Broken(Exception):  # noqa: N818
    """What breaks a write off."""


@pytest.fixture(params=[False, True], ids=["private", "shared"])
def make(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    def made(kind: str) -> Any:
        storage = KINDS[kind]()
        buffer: ReplayBuffer = ReplayBuffer(storage=storage, batch_size=4)
        if request.param and kind != "list":
            buffer.share()

        def write(first: int, count: int) -> None:
            buffer.extend(frames(first, count, rows=kind == "rows"))

        def break_off(first: int, count: int) -> None:
            """Break a write off when all was copied and nothing published."""
            publish = storage.ring.publish
            storage.ring.publish = _raise  # pyright: ignore[reportAttributeAccessIssue]
            try:
                with pytest.raises(Broken):
                    write(first, count)
            finally:
                storage.ring.publish = publish  # pyright: ignore[reportAttributeAccessIssue]

        return buffer, write, break_off

    return made


def _raise(*_: Any) -> None:
    raise Broken


def numbers(data: Any) -> list[int]:
    """The numbers of frames, those of the first row where there are several, all entries of which agree."""
    data = torch.stack(data) if isinstance(data, list) else data
    number, wide = data["number"], data["wide"]
    assert (wide == number.unsqueeze(-1)).all()
    assert (data["next", "wide"] == number.unsqueeze(-1) + 1).all()
    if number.ndim > 1:
        assert (number == number[:1]).all()
        number = number[0]
    return number.int().tolist()


@anywhere
def test_what_was_broken_off_is_not_seen(kind: str, make: Any) -> None:
    buffer, write, break_off = make(kind)
    rows = 2 if kind == "rows" else 1
    write(0, 3)
    break_off(100, 4)
    assert (len(buffer), numbers(buffer[:])) == (3 * rows, [0, 1, 2])
    write(3, 2)
    assert (len(buffer), numbers(buffer[:])) == (5 * rows, [0, 1, 2, 3, 4])
    assert set(buffer.sample(200)["number"].int().flatten().tolist()) == {0, 1, 2, 3, 4}
    break_off(200, 5)  # the last two over the first two
    assert (len(buffer), numbers(buffer[:])) == (3 * rows, [2, 3, 4])
    write(5, 6)
    assert (len(buffer), numbers(buffer[:])) == (7 * rows, [5, 6, 7, 8, 9, 10, 4])
    write(11, 6)
    assert numbers(buffer[:]) == [15, 16, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert not buffer.storage.control.writers[:, COUNT].any()


@anywhere
def test_a_number_is_a_place_and_a_slice_is_of_what_is_whole(kind: str, make: Any) -> None:
    buffer, write, break_off = make(kind)
    write(0, 3)
    break_off(100, 4)
    write(3, 2)
    if kind == "rows":
        assert buffer[1, 8]["number"] == 4
        assert buffer[0, -2:]["number"].tolist() == [3, 4]
        assert buffer[torch.tensor([0, 1]), torch.tensor([7, 2])]["number"].tolist() == [3, 2]
        buffer[:, 7] = frames(30, 1, rows=True)[:, 0]
        with pytest.raises(OptionError, match="found place 4, at which a write was broken off or is under way"):
            buffer[:, 4]
    else:
        assert [int(buffer[place]["number"]) for place in (2, 7, 8, -1, -3)] == [2, 3, 4, 4, 2]
        sample, info = buffer.sample(50, return_info=True)
        sample = torch.stack(sample) if isinstance(sample, list) else sample
        assert numbers(buffer[info["index"]]) == numbers(sample)
        assert numbers(buffer[3:]) == [3, 4]
        assert numbers(buffer[torch.tensor([True, False, False, False, True])]) == [0, 4]
        buffer[7] = frames(30, 1)[0]
        assert numbers(buffer[[8, 7]]) == [4, 30]
        for refused in (4, [0, 4], torch.tensor([6])):
            with pytest.raises(OptionError, match="found place [46], at which a write was broken off or is under way"):
                buffer[refused]
            with pytest.raises(OptionError, match="found place [46]"):
                buffer[refused] = frames(0, 1)
    assert numbers(buffer[:]) == [0, 1, 2, 30, 4]


def test_where_what_was_broken_off_lies_at_an_end_no_copy_is_made() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=LazyTensorStorage(SIZE))
    buffer.extend(frames(0, 3))
    buffer.storage.ring.claim(4)
    held = buffer[:]
    assert held["number"].data_ptr() == buffer.storage.leaf(("number",)).data_ptr()
    buffer[1] = frames(10, 1)[0]
    assert numbers(held) == [0, 10, 2]


def test_objects_of_a_write_that_was_broken_off() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=LazyTensorStorage(6))
    words = lambda *given: TensorDict({"word": list(given), "x": torch.zeros(len(given))}, [len(given)])  # noqa: E731
    buffer.extend(words("a", "b"))
    buffer.storage.ring.give_up(buffer.storage.ring.claim(2))
    buffer.extend(words("c"))
    assert buffer[:]["word"] == ["a", "b", "c"]
    assert buffer[4]["word"] == "c"


@pytest.mark.parametrize("kind", ["ram", "once", "files", "list"])
def test_dicts_and_tuples_of_writes_that_were_broken_off(kind: str) -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=KINDS[kind]())
    form = lambda *given: {"x": torch.tensor(given), "pair": (torch.tensor(given) + 1, [torch.tensor(given)])}  # noqa: E731
    buffer.extend(form(0, 1, 2))
    buffer.storage.ring.give_up(buffer.storage.ring.claim(2))
    buffer.extend(form(3, 4))
    buffer[5] = _first(form(30))
    assert int(buffer[5]["x"]) == 30
    assert buffer[6]["pair"][0] == 5
    assert buffer[-2:]["x"].tolist() == [30, 4]
    with pytest.raises(OptionError, match="found place 4"):
        buffer[4] = _first(form(1))
    with pytest.raises(OptionError, match="found place 3"):
        buffer[torch.tensor([0, 3])]
    state, other = buffer.state_dict(), ReplayBuffer(storage=KINDS[kind]())
    other.load_state_dict(state)
    assert other[6]["pair"][0] == 5
    with pytest.raises(OptionError, match="found place 4"):
        other[4]


def _first(form: Any) -> Any:
    return {"x": form["x"][0], "pair": (form["pair"][0][0], [form["pair"][1][0][0]])}


def test_more_broken_writes_than_the_table_has_entries() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=LazyTensorStorage(4 * WRITERS), batch_size=4, shared=True)
    buffer.extend(frames(0, 1))
    ring = buffer.storage.ring
    publish, ring.publish = ring.publish, _raise  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(2 * WRITERS):
        with pytest.raises(Broken):
            buffer.extend(frames(100, 1))
    ring.publish = publish  # pyright: ignore[reportAttributeAccessIssue]
    buffer.extend(frames(1, 2))
    assert numbers(buffer[:]) == [0, 1, 2]
    assert set(numbers(buffer.sample(100))) == {0, 1, 2}


def test_holes_are_kept_by_a_save() -> None:
    buffer, other = (ReplayBuffer(storage=LazyTensorStorage(SIZE)) for _ in range(2))
    buffer.extend(frames(0, 3))
    buffer.storage.ring.give_up(buffer.storage.ring.claim(2))
    buffer.extend(frames(3, 2))
    other.load_state_dict(buffer.state_dict())
    assert (len(other), numbers(other[:])) == (5, [0, 1, 2, 3, 4])
