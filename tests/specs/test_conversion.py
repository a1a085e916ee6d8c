"""Specs from gymnasium spaces; shapes and dtypes are torchrl's where it has any."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from reap.errors import OptionError
from reap.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
    spec_from_space,
)

INF = np.inf


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), Bounded(-1, 1, 3)),
        (spaces.Box(-1, 1, (), np.float64), Bounded(-1, 1, (), dtype=torch.float64)),
        (spaces.Box(-INF, INF, (3,), np.float64), Unbounded(3, dtype=torch.float64)),
        (
            spaces.Box(np.array([0, -INF], np.float32), np.array([INF, 1], np.float32)),
            Bounded(torch.tensor([0, -INF]), torch.tensor([INF, 1])),
        ),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), Bounded(0, 255, (4, 4, 3), dtype=torch.uint8)),
        (spaces.Box(-5, 5, (2,), np.int64), Bounded(-5, 5, 2, dtype=torch.int64)),
        (spaces.Box(-INF, INF, (2,), np.int32), Unbounded(2, dtype=torch.int32)),
        (spaces.Box(0, 9, (2,), np.uint16), Bounded(0, 9, 2, dtype=torch.uint16)),
        (spaces.Box(0, 1, (2,), np.float16), Bounded(0, 1, 2, dtype=torch.float16)),
        (spaces.MultiBinary(3), Binary(3)),
        (spaces.MultiBinary((2, 3)), Binary(shape=(2, 3))),
    ],
)
@pytest.mark.parametrize("categorical", [False, True])
def test_numbers(space, expected, categorical):
    spec = spec_from_space(space, categorical=categorical)
    assert spec == expected
    space.seed(0)
    assert all(spec.is_in(torch.as_tensor(space.sample())) for _ in range(20))


@pytest.mark.parametrize(
    ("space", "one_hot", "indices"),
    [
        (spaces.Discrete(3), OneHot(3, dtype=torch.int64), Categorical(3)),
        (spaces.Discrete(3, start=5), OneHot(3, dtype=torch.int64), Categorical(3)),
        (spaces.MultiDiscrete([2, 3]), MultiOneHot([2, 3], dtype=torch.int64), MultiCategorical([2, 3])),
        (
            spaces.MultiDiscrete([[2, 3], [4, 5]]),
            MultiOneHot([2, 3, 4, 5], dtype=torch.int64),
            MultiCategorical([[2, 3], [4, 5]]),
        ),
        (spaces.MultiDiscrete([2, 3], start=[7, 8]), MultiOneHot([2, 3], dtype=torch.int64), MultiCategorical([2, 3])),
    ],
)
def test_choices(space, one_hot, indices):
    assert spec_from_space(space) == one_hot
    assert spec_from_space(space, categorical=True) == indices


def test_dtype_casts_floats_only():
    box = spaces.Box(-1, 1, (3,), np.float64)
    assert spec_from_space(box, dtype=torch.float32) == Bounded(-1, 1, 3)
    assert spec_from_space(spaces.Box(-INF, INF, (3,), np.float64), dtype=torch.float32) == Unbounded(3)
    assert spec_from_space(spaces.Box(0, 255, (3,), np.uint8), dtype=torch.float32).dtype == torch.uint8
    nested = spec_from_space(spaces.Dict(a=box, b=spaces.Discrete(2)), dtype=torch.float16)
    assert [leaf.dtype for _, leaf in nested.leaves()] == [torch.float16, torch.int64]


def test_trees():
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Dict(c=spaces.Discrete(2)))
    assert spec_from_space(space) == Composite(a=Bounded(-1, 1, 2), b={"c": OneHot(2, dtype=torch.int64)})
    assert spec_from_space(space, categorical=True)["b", "c"] == Categorical(2)
    pair = spaces.Tuple((spaces.Discrete(2), spaces.Tuple((spaces.Box(-1, 1, ()),))))
    assert spec_from_space(pair, categorical=True) == Composite({"0": Categorical(2), "1": {"0": Bounded(-1, 1, ())}})


def test_objects():
    text = spec_from_space(spaces.Text(5, min_length=2))
    assert (text, text.example_data) == (NonTensor(()), "00")
    graph = spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3))
    for space in (graph, spaces.Sequence(spaces.Discrete(2)), spaces.OneOf((spaces.Discrete(2),))):
        assert spec_from_space(space) == NonTensor(())


class _OldSpace:
    __module__ = "gym.spaces.box"


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (3, "expected a gymnasium.Space, found 3 of builtins.int. Give the env's observation_space"),
        (_OldSpace(), "make the env with gymnasium.make, or convert it with shimmy"),
        (spaces.Box(0, 1, (2,), np.longdouble), "expected a Box of a dtype that torch has, found float128"),
        (spaces.Box(0, 9, (2,), np.uint64), "found uint64"),
    ],
)
def test_refused(space, text):
    with pytest.raises(OptionError) as caught:
        spec_from_space(space)
    assert text in str(caught.value)
