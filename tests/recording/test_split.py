"""`split_trajectories`: exact rows, order, padding and errors."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    UnbatchedTensor,
    lazy_stack,
    tensorclass,
)

import reap.collectors.utils
from reap.errors import OptionError, SpecMismatch
from reap.recording.split import split_trajectories
from tests.pairwise import by_default

LAYOUTS = [torch.strided, torch.jagged]


def batch_of(ids: Any, **entries: Any) -> TensorDict:
    """A batch with these ids, whose `x` numbers the frames 1, 2, ..."""
    ids = torch.as_tensor(ids)
    x = torch.arange(1, ids.numel() + 1).reshape(ids.shape)
    names = [None] * (ids.ndim - 1) + ["time"]
    return TensorDict({"x": x, "collector": {"traj_ids": ids}, **entries}, ids.shape, names=names)


def batch_with_done(done: Any) -> TensorDict:
    done = torch.as_tensor(done, dtype=torch.bool)
    x = torch.arange(1, done.numel() + 1).reshape(done.shape)
    return TensorDict({"x": x, "next": {"done": done.unsqueeze(-1)}}, done.shape)


def frames_of(split: TensorDictBase, key: Any = "x", mask_key: Any = ("collector", "mask")) -> list[list[Any]]:
    """The valid frames of each row."""
    rows = zip(split[key].tolist(), split[mask_key].tolist(), strict=True)
    return [[frame for frame, valid in zip(*row, strict=True) if valid] for row in rows]


def snapshot(td: TensorDictBase) -> dict[Any, list[Any]]:
    return {key: td[key].tolist() for key in td.keys(True, True)}


# By id


def test_one_row_is_cut_by_id() -> None:
    split = split_trajectories(batch_of([4, 4, 4, 9, 9, 2]))
    assert split.batch_size == (3, 3)
    assert split.names == split["collector"].names == [None, "time"]
    assert split["x"].tolist() == [[1, 2, 3], [4, 5, 0], [6, 0, 0]]
    assert split["collector", "traj_ids"].tolist() == [[4, 4, 4], [9, 9, 0], [2, 0, 0]]
    assert split["collector", "mask"].dtype == torch.bool
    assert split["collector", "mask"].tolist() == [[True] * 3, [True, True, False], [True, False, False]]


def test_mask_is_there_without_padding() -> None:
    split = split_trajectories(batch_of([[0, 0], [1, 1]]))
    assert split["x"].tolist() == [[1, 2], [3, 4]]
    assert split["collector", "mask"].tolist() == [[True, True], [True, True]]


def test_trajectories_come_in_order_of_first_appearance() -> None:
    assert frames_of(split_trajectories(batch_of([[5, 3, 3], [0, 0, 1]]))) == [[1], [2, 3], [4, 5], [6]]


def test_interleaved_ids() -> None:
    assert frames_of(split_trajectories(batch_of([8, 1, 8, 1, 1, 8, 0]))) == [[1, 3, 6], [2, 4, 5], [7]]


def test_a_trajectory_goes_on_in_a_later_row() -> None:
    # Two batches of two envs, concatenated along the rows: env 0 did not finish in the first.
    first, second = [[0, 0, 0], [1, 1, 2]], [[0, 0, 3], [2, 2, 2]]
    assert frames_of(split_trajectories(batch_of(first + second))) == [[1, 2, 3, 7, 8], [4, 5], [6, 10, 11, 12], [9]]


def test_time_major_order_gives_the_same_trajectories() -> None:
    batch = batch_of([[0, 0, 3], [1, 1, 1]])
    for other in (batch.transpose(0, 1), batch.transpose(0, 1).reshape(-1)):
        assert sorted(frames_of(split_trajectories(other))) == [[1, 2], [3], [4, 5, 6]]


def test_b01_flattened_and_concatenated_batches() -> None:
    # Env 0 runs one episode through all batches; env 1 ends one in the middle of the second batch.
    time = torch.arange(75)
    ids = torch.stack([torch.zeros_like(time), torch.where(time < 40, 1, 2)])
    stream = TensorDict({"x": torch.stack([time, 100 + time]), "collector": {"traj_ids": ids}}, [2, 75])
    flat = torch.cat([stream[:, start : start + 25].reshape(-1) for start in (0, 25, 50)])
    split = split_trajectories(flat)
    assert split.batch_size == (3, 75)
    assert frames_of(split) == [list(range(75)), list(range(100, 140)), list(range(140, 175))]


def test_b02_ids_of_two_workers_stay_apart() -> None:
    worker = 1 << 40
    ids = [[0, 0, 1], [worker, worker + 1, worker + 1]]
    split = split_trajectories(batch_of(ids))
    assert frames_of(split) == [[1, 2], [3], [4], [5, 6]]
    assert frames_of(split, ("collector", "traj_ids")) == [[0, 0], [1], [worker], [worker + 1] * 2]


def test_b08_frames_without_a_trajectory_are_dropped() -> None:
    assert frames_of(split_trajectories(batch_of([[0, 0, -1], [1, -1, -1], [-1, -1, -1], [2, 2, 2]]))) == [
        [1, 2],
        [4],
        [10, 11, 12],
    ]


def test_b08_frames_with_mask_false_are_dropped() -> None:
    # An idle row (zeros, id 0 like a real one), and a reset step in the middle of row 0.
    batch = batch_of([[0, 0, 1, 1], [2, 2, 0, 0]])
    batch["collector", "mask"] = torch.tensor([[True, True, False, True], [True, True, False, False]])
    split = split_trajectories(batch)
    assert frames_of(split) == [[1, 2], [4], [5, 6]]
    assert split["collector", "mask"].tolist() == [[True, True], [True, False], [True, True]]


def test_nothing_valid() -> None:
    split = split_trajectories(batch_of([-1, -1]))
    assert split.batch_size == (0, 0)
    assert split["collector", "mask"].shape == (0, 0)


def test_splitting_twice_changes_nothing() -> None:
    once = split_trajectories(batch_of([[3, 3, 0], [1, 0, 0]]))
    twice = split_trajectories(once)
    assert snapshot(twice) == snapshot(once)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_ids_keep_their_dtype(dtype: torch.dtype) -> None:
    split = split_trajectories(batch_of(torch.tensor([255, 255, 0]).to(dtype)))
    assert split["collector", "traj_ids"].dtype == dtype
    assert frames_of(split) == [[1, 2], [3]]


# By done


def test_rows_are_cut_after_done_frames() -> None:
    split = split_trajectories(batch_with_done([[0, 1, 0, 0], [1, 0, 0, 1]]))
    assert frames_of(split, mask_key="mask") == [[1, 2], [3, 4], [5], [6, 7, 8]]
    assert split["traj_ids"].tolist() == [[0, 0, 0], [1, 1, 0], [2, 0, 0], [3, 3, 3]]
    assert split["traj_ids"].dtype == torch.int64
    assert split["next", "done"].tolist() == [
        [[False], [True], [False]],
        [[False], [False], [False]],
        [[True], [False], [False]],
        [[False], [False], [True]],
    ]


def test_all_done_gives_one_frame_each() -> None:
    assert split_trajectories(batch_with_done([[1, 1], [1, 1]]))["x"].tolist() == [[1], [2], [3], [4]]


def test_no_done_gives_the_rows() -> None:
    assert split_trajectories(batch_with_done([[0, 0], [0, 0]]))["x"].tolist() == [[1, 2], [3, 4]]


def test_done_without_the_last_dim() -> None:
    batch = batch_with_done([0, 1, 0])
    batch["next", "done"] = batch["next", "done"].squeeze(-1)
    assert frames_of(split_trajectories(batch), mask_key="mask") == [[1, 2], [3]]


def test_ids_and_mask_land_under_an_existing_collector_entry() -> None:
    batch = batch_with_done([0, 1, 0, 0])
    batch["collector", "mask"] = torch.tensor([False, True, True, False])
    split = split_trajectories(batch)
    assert frames_of(split) == [[2], [3]]
    assert split["collector", "traj_ids"].tolist() == [[0], [1]]


def test_ids_win_over_done() -> None:
    batch = batch_with_done([0, 1, 0])
    batch["collector", "traj_ids"] = torch.tensor([7, 7, 7])
    assert frames_of(split_trajectories(batch)) == [[1, 2, 3]]


# Keys


def test_prefix_as_string_and_as_tuple() -> None:
    for prefix, place in (("meta", ("meta",)), (("a", "b"), ("a", "b")), ((), ())):
        batch = TensorDict({"x": torch.arange(3)}, [3])
        batch[(*place, "traj_ids")] = torch.tensor([0, 1, 1])
        split = split_trajectories(batch, prefix=prefix)
        assert split[(*place, "mask")].tolist() == [[True, False], [True, True]]
        assert split["x"].tolist() == [[0, 0], [1, 2]]


def test_trajectory_key_overrides_prefix() -> None:
    batch = batch_of([0, 0, 0])
    batch["episode", "number"] = torch.tensor([1, 2, 1])
    split = split_trajectories(batch, prefix="collector", trajectory_key=("episode", "number"))
    assert frames_of(split, mask_key=("episode", "mask")) == [[1, 3], [2]]
    assert ("collector", "mask") not in split.keys(True)


@pytest.mark.parametrize("done_key", ["ended", ("next", "ended")])
def test_done_key(done_key: Any) -> None:
    batch = batch_with_done([0, 0, 0])
    batch["next", "ended"] = torch.tensor([[True], [False], [False]])
    assert frames_of(split_trajectories(batch, done_key=done_key), mask_key="mask") == [[1], [2, 3]]


def test_nested_done_key() -> None:
    batch = batch_with_done([0, 0, 0])
    batch["next", "agent", "done"] = torch.tensor([[True], [False], [False]])
    assert frames_of(split_trajectories(batch, done_key=("agent", "done")), mask_key="mask") == [[1], [2, 3]]


def test_public_door() -> None:
    assert reap.collectors.utils.split_trajectories is split_trajectories


# Leaves


DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16),
    *(torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ids", [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]], ids=["gathers", "scatters"])
def test_every_dtype_is_padded_with_zeros(dtype: torch.dtype, ids: list[int]) -> None:
    batch = batch_of(ids, leaf=torch.ones(len(ids), 2).to(dtype))
    split = split_trajectories(batch)
    assert split["leaf"].dtype == dtype
    expected = split["collector", "mask"].unsqueeze(-1).expand(-1, -1, 2)
    assert torch.equal(split["leaf"].to(torch.complex128).real, expected.to(torch.float64))


def test_nan_and_infinity_stay_out_of_the_padding() -> None:
    leaf = torch.tensor([torch.nan, 1.0, torch.inf])
    assert split_trajectories(batch_of([0, 1, 1], leaf=leaf))["leaf"][0, 1] == 0


def test_non_contiguous_and_expanded_leaves() -> None:
    leaf = torch.arange(12).reshape(3, 4).t()  # [4, 3], columns first
    batch = batch_of([0, 1, 1, 0], leaf=leaf, same=torch.tensor(5).expand(4), every_second=torch.arange(8)[::2])
    split = split_trajectories(batch)
    assert split["leaf"].tolist() == [[[0, 4, 8], [3, 7, 11]], [[1, 5, 9], [2, 6, 10]]]
    assert split["same"].tolist() == [[5, 5], [5, 5]]
    assert split["every_second"].tolist() == [[0, 6], [2, 4]]


@pytest.mark.parametrize("ids", [[0, 0, 1], [0, 0, 0, 0, 0, 1, 2, 3]], ids=["gathers", "scatters"])
def test_features_of_size_zero(ids: list[int]) -> None:
    split = split_trajectories(batch_of(ids, leaf=torch.zeros(len(ids), 0, 3)))
    assert split["leaf"].shape == (*split.batch_size, 0, 3)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 1, 3), (1, 2, 1, 2)])
def test_leading_dims_of_any_rank(leading: tuple[int, ...]) -> None:
    rows = int(np.prod(leading))
    ids = torch.arange(rows).reshape(*leading, 1).expand(*leading, 4)
    split = split_trajectories(batch_of(ids, pixels=torch.ones(*leading, 4, 5, 6)))
    assert split.batch_size == (rows, 4)
    assert split.names == [None, "time"]
    assert split["x"].tolist() == torch.arange(1, 4 * rows + 1).reshape(rows, 4).tolist()
    assert split["pixels"].shape == (rows, 4, 5, 6)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)])
def test_empty_batches(shape: tuple[int, ...]) -> None:
    ids = torch.zeros(shape, dtype=torch.int64)
    split = split_trajectories(batch_of(ids, pixels=torch.zeros(*shape, 2)))
    assert split.batch_size == (0, 0)
    assert split["pixels"].shape == (0, 0, 2)
    assert split_trajectories(batch_with_done(ids))["traj_ids"].shape == (0, 0)


def test_one_frame() -> None:
    split = split_trajectories(batch_of([3]))
    assert split["x"].tolist() == [[1]]
    assert split["collector", "mask"].tolist() == [[True]]


def test_nested_keys_and_nodes_with_more_batch_dims() -> None:
    agents = TensorDict({"obs": torch.arange(6).reshape(3, 2)}, [3, 2], names=["time", "agent"])
    split = split_trajectories(batch_of([0, 1, 0], a={"b": {"c": torch.arange(3)}}, agents=agents))
    assert split["a", "b", "c"].tolist() == [[0, 2], [1, 0]]
    assert split["agents"].batch_size == (2, 2, 2)
    assert split["agents"].names == [None, "time", "agent"]
    assert split["agents", "obs"].tolist() == [[[0, 1], [4, 5]], [[2, 3], [0, 0]]]


def test_key_order_and_key_set() -> None:
    split = split_trajectories(batch_of([0, 0], z=torch.zeros(2), a=torch.zeros(2)))
    assert list(split.keys()) == ["x", "collector", "z", "a"]
    assert list(split["collector"].keys()) == ["traj_ids", "mask"]


def test_input_is_untouched_and_not_shared() -> None:
    batch = batch_of([[0, 0], [1, 1]], text=NonTensorStack.from_list([["a", "b"], ["c", "d"]])).lock_()
    before = snapshot(batch.exclude("text"))
    split = split_trajectories(batch)
    assert not split.is_locked
    for key in ("x", ("collector", "traj_ids"), ("collector", "mask")):
        split[key].zero_()
    split["text"] = split["text"]
    split[0, 0] = split[1, 1]
    assert snapshot(batch.exclude("text")) == before
    assert batch.get("text").tolist() == [["a", "b"], ["c", "d"]]
    assert set(batch.keys(True)) == {"x", "text", "collector", ("collector", "traj_ids")}


def test_ids_from_done_are_not_written_to_the_input() -> None:
    batch = batch_with_done([0, 1, 0])
    split_trajectories(batch)
    assert set(batch.keys(True, True)) == {"x", ("next", "done")}


def test_gradients_are_cut() -> None:
    batch = batch_of([0, 1, 1], leaf=torch.ones(3, requires_grad=True))
    for as_nested in (False, *LAYOUTS):
        assert not split_trajectories(batch, as_nested=as_nested)["leaf"].requires_grad


# Object columns, lazy stacks, classes


@pytest.mark.parametrize("stack_dim", [0, 1])
def test_strings_and_objects(stack_dim: int) -> None:
    columns = [["a", {"k": 1}], ["b", [1, 2]], ["c", None]]  # [time][row]
    if stack_dim:
        stack = NonTensorStack(*(NonTensorStack(*map(NonTensorData, column)) for column in columns), stack_dim=1)
    else:
        rows = zip(*columns, strict=True)
        stack = NonTensorStack(*(NonTensorStack(*map(NonTensorData, row)) for row in rows))
    assert stack.batch_size == (2, 3)
    split = split_trajectories(batch_of([[0, 0, 1], [2, 2, 1]], text=stack))
    assert split.get("text").tolist() == [["a", "b"], ["c", None], [{"k": 1}, [1, 2]]]
    assert split.get("text").batch_size == (3, 2)


def test_objects_without_any_frame() -> None:
    split = split_trajectories(batch_of([-1, -1], text=NonTensorStack("a", "b")))
    assert split.get("text").batch_size == (0, 0)


def test_one_object_for_the_whole_batch_stays_one() -> None:
    split = split_trajectories(batch_of([0, 1, 1], env=NonTensorData("CartPole", batch_size=[3])))
    assert split["env"] == "CartPole"
    assert split.get("env").batch_size == (2, 2)


def test_tensors_without_batch_dims_stay() -> None:
    split = split_trajectories(batch_of([0, 1, 1], table=UnbatchedTensor(torch.arange(7))))
    assert split["table"].tolist() == list(range(7))
    assert split.get("table").batch_size == (2, 2)


def test_lazy_stack_of_equal_rows_becomes_dense() -> None:
    batch = lazy_stack([batch_of([0, 0, 1], leaf=torch.ones(3, 2)), batch_of([2, 2, 2], leaf=torch.ones(3, 2))])
    split = split_trajectories(batch)
    assert isinstance(split, TensorDict)
    assert frames_of(split) == [[1, 2], [3], [1, 2, 3]]
    assert ("collector", "mask") not in batch.keys(True)


def ragged_batch() -> LazyStackedTensorDict:
    """Frame k holds a tensor of k + 1 ones."""
    frames = [TensorDict({"points": torch.ones(k + 1), "k": torch.tensor(k)}) for k in range(4)]
    return lazy_stack(frames)


def test_ragged_node_stays_lazy() -> None:
    batch = batch_of([0, 1, 1, 1], scan=ragged_batch())
    split = split_trajectories(batch)
    scan = split["scan"]
    assert scan.batch_size == (2, 3)
    assert [scan[0, 0]["points"].numel(), *(scan[1, t]["points"].numel() for t in range(3))] == [1, 2, 3, 4]
    assert not scan[0, 1]["points"].any()
    assert scan["k"].tolist() == [[0, 0, 0], [1, 2, 3]]
    scan[0, 0]["points"].zero_()
    assert batch["scan"][0]["points"].tolist() == [1]


def test_ragged_batch_keeps_ids_and_mask() -> None:
    batch = ragged_batch()
    batch["collector"] = TensorDict({"traj_ids": torch.tensor([5, 5, 6, 5])}, [4])
    split = split_trajectories(batch)
    assert split["collector", "mask"].tolist() == [[True, True, True], [True, False, False]]
    assert split["k"].tolist() == [[0, 1, 3], [2, 0, 0]]
    assert split[0, 2]["points"].tolist() == [1, 1, 1, 1]


@tensorclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def test_tensorclass_nodes_keep_their_class() -> None:
    pair = Pair(left=torch.arange(3), right=torch.ones(3, 2), batch_size=[3])
    split = split_trajectories(batch_of([0, 1, 1], pair=pair))
    assert isinstance(split["pair"], Pair)
    assert split["pair"].batch_size == (2, 2)
    assert split["pair"].left.tolist() == [[0, 0], [1, 2]]


# Nested tensors


@pytest.mark.parametrize("as_nested", [True, *LAYOUTS], ids=str)
@pytest.mark.parametrize("ids", [[0, 0, 1, 0, 2], [0, 0, 1, 1], [3, 3], [-1, 0, 0]], ids=str)
def test_nested_holds_the_same_content(as_nested: Any, ids: list[int]) -> None:
    batch = batch_of(ids, obs=torch.rand(len(ids), 3), flag=torch.ones(len(ids), 1, dtype=torch.bool))
    nested, padded = split_trajectories(batch, as_nested=as_nested), split_trajectories(batch)
    assert nested.batch_size == (len(padded), -1)
    assert nested.names == [None, "time"]
    for key in padded.keys(True, True):
        leaf = nested[key]
        assert leaf.is_nested
        assert leaf.layout == (torch.strided if as_nested is True else as_nested)
        assert leaf.dtype == padded[key].dtype
        rows = zip(leaf.unbind(), padded[key], padded["collector", "mask"], strict=True)
        assert all(torch.equal(piece, row[mask]) for piece, row, mask in rows)
    assert (nested.to_padded_tensor() == padded).all()
    assert torch.equal(nested.to_padded_tensor(mask_key="m")["m"], padded["collector", "mask"])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_nested_leaves_can_be_combined(layout: torch.layout) -> None:
    nested = split_trajectories(batch_of([0, 0, 1]), as_nested=layout)
    product = nested["x"] * nested["collector", "traj_ids"]
    assert [piece.tolist() for piece in product.unbind()] == [[0, 0], [3]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_nested_with_objects_and_features_of_size_zero(layout: torch.layout) -> None:
    batch = batch_of([0, 1, 1], text=NonTensorStack("a", "b", "c"), none=torch.zeros(3, 0), scan=ragged_batch()[:3])
    split = split_trajectories(batch, as_nested=layout)
    assert split.get("text").tolist() == [["a"], ["b", "c"]]
    assert [piece.shape for piece in split["none"].unbind()] == [(1, 0), (2, 0)]
    assert [[frame["points"].numel() for frame in row.unbind(0)] for row in split["scan"].unbind(0)] == [[1], [2, 3]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_nested_without_trajectories(layout: torch.layout) -> None:
    split = split_trajectories(batch_of([-1, -1]), as_nested=layout)
    assert split.batch_size == (0, -1)
    assert split["x"].is_nested
    assert split["x"].dtype == torch.int64


# Errors


def test_neither_ids_nor_done() -> None:
    batch = TensorDict({"x": torch.zeros(2), "collector": {"version": torch.zeros(2)}}, [2])
    with pytest.raises(SpecMismatch) as caught:
        split_trajectories(batch)
    message = str(caught.value)
    for part in ("('collector', 'traj_ids')", "('next', 'done')", "'x'", "('collector', 'version')"):
        assert part in message


@pytest.mark.parametrize(
    ("entry", "value", "found"),
    [
        (("collector", "traj_ids"), torch.zeros(3), "torch.float32 [3]"),
        (("collector", "traj_ids"), torch.zeros(3, 2, dtype=torch.int64), "torch.int64 [3, 2]"),
        (("collector", "traj_ids"), torch.zeros(3, dtype=torch.bool), "torch.bool [3]"),
        (("collector", "traj_ids"), NonTensorData("abc", batch_size=[3]), "NonTensorData"),
        (("collector", "mask"), torch.zeros(3), "torch.float32 [3]"),
        (("collector", "mask"), torch.zeros(3, 4, dtype=torch.bool), "torch.bool [3, 4]"),
    ],
)
def test_entries_of_a_wrong_kind(entry: Any, value: Any, found: str) -> None:
    batch = batch_of([0, 0, 1])
    batch[entry] = value
    with pytest.raises(SpecMismatch) as caught:
        split_trajectories(batch)
    assert found in str(caught.value)
    assert repr(entry) in str(caught.value)


def test_done_of_a_wrong_shape() -> None:
    batch = batch_with_done([0, 1])
    batch["next", "done"] = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(SpecMismatch, match=r"\('next', 'done'\), found torch.bool \[2, 3\]"):
        split_trajectories(batch)


def test_batch_without_time() -> None:
    with pytest.raises(SpecMismatch, match=r"batch size \[\]"):
        split_trajectories(TensorDict({"x": torch.zeros(2)}))


def test_rows_of_unequal_length() -> None:
    with pytest.raises(SpecMismatch, match=r"batch size \[2, -1\]"):
        split_trajectories(lazy_stack([batch_of([0, 0]), batch_of([1])]))


@pytest.mark.parametrize("as_nested", ["jagged", torch.sparse_coo, None, 3])
def test_unknown_layout(as_nested: Any) -> None:
    with pytest.raises(OptionError, match=r"torch\.jagged"):
        split_trajectories(batch_of([0]), as_nested=as_nested)


# Against a plain reference


def reference(labels: list[int | None]) -> list[list[int]]:
    """Flat positions by label, in order of appearance; None is no frame."""
    groups: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        if label is not None:
            groups.setdefault(label, []).append(position)
    return list(groups.values())


def random_case(rng: random.Random) -> tuple[TensorDict, list[int | None]]:
    """A batch of random shape, cut by ids or by done, with or without a mask, and the label of each frame."""
    shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 3))] + [rng.choice([0, 1, 2, 7, 30])]
    size = int(np.prod(shape))
    x = torch.arange(2 * size).reshape(*shape, 2)
    batch = TensorDict({"x": x, "collector": TensorDict({}, shape)}, shape)
    valid = [rng.random() < rng.choice([0.3, 1.0]) for _ in range(size)]
    if has_mask := rng.random() < 0.5:
        batch["collector", "mask"] = torch.tensor(valid, dtype=torch.bool).reshape(shape)
    if rng.random() < 0.7:
        known = [-1, *(rng.randint(0, 1 << 50) for _ in range(rng.randint(1, 6)))]
        stay = rng.choice([0.0, 0.9])
        ids: list[int] = []
        for _ in range(size):
            ids.append(ids[-1] if ids and rng.random() < stay else rng.choice(known))
        batch["collector", "traj_ids"] = torch.tensor(ids, dtype=torch.int64).reshape(shape)
        labels: list[int | None] = [None if label == -1 else label for label in ids]
    else:
        done = [rng.random() < rng.choice([0.0, 0.2, 1.0]) for _ in range(size)]
        ends = [is_done and (ok or not has_mask) for is_done, ok in zip(done, valid, strict=True)]
        batch["next", "done"] = torch.tensor(done, dtype=torch.bool).reshape(*shape, 1)
        labels = [sum(ends[:k]) + size * (k // shape[-1]) for k in range(size)]
    if has_mask:
        labels = [label if ok else None for label, ok in zip(labels, valid, strict=True)]
    return batch, labels


@pytest.mark.parametrize("seed", by_default(range(10), 0, 1, 2))
def test_agrees_with_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        batch, labels = random_case(rng)
        expected = reference(labels)
        flat = batch["x"].reshape(-1, 2).tolist()
        rows = [[flat[position] for position in positions] for positions in expected]
        longest = max(map(len, rows), default=0)
        split = split_trajectories(batch)
        assert split.batch_size == (len(rows), longest)
        assert split["x"].tolist() == [row + [[0, 0]] * (longest - len(row)) for row in rows]
        assert split["collector", "mask"].tolist() == [[t < len(row) for t in range(longest)] for row in rows]
        nested = split_trajectories(batch, as_nested=torch.jagged)
        assert [piece.tolist() for piece in nested["x"].unbind()] == rows
        # Round trip: the valid frames are the frames that went in, each once.
        back = split["x"][split["collector", "mask"]]
        assert sorted(back[:, 0].tolist()) == sorted(2 * position for positions in expected for position in positions)


def calls_of(function: Callable[[], Any]) -> int:
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("as_nested", [False, torch.jagged], ids=str)
def test_python_work_does_not_grow_with_the_batch(as_nested: Any) -> None:
    def split_of(rows: int, columns: int) -> Callable[[], Any]:
        batch = batch_of(torch.arange(rows * columns).reshape(rows, columns) // 3)
        split_trajectories(batch, as_nested=as_nested)
        return lambda: split_trajectories(batch, as_nested=as_nested)

    assert calls_of(split_of(64, 1000)) == calls_of(split_of(2, 9))
