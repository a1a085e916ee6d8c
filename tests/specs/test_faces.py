"""What torchrl's specs do besides drawing and checking: other shapes, encodings, twins, masks, changes; against torchrl."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from reap.data import tensor_specs as old
from reap.errors import CallOrderError, OptionError, SpecMismatch
from reap.specs import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, NonTensor, OneHot, Unbounded

LOW = torch.arange(6.0).reshape(2, 3)

SHAPES: list[tuple[Any, Callable[[Any], Any], tuple[int, ...]]] = [
    (Bounded(LOW, LOW + 1), lambda spec: spec.unsqueeze(0), (1, 2, 3)),
    (Bounded(LOW, LOW + 1), lambda spec: spec.unsqueeze(-1), (2, 3, 1)),
    (Bounded(LOW, LOW + 1), lambda spec: spec.unsqueeze(1).squeeze(1), (2, 3)),
    (Bounded(LOW, LOW + 1), lambda spec: spec.unsqueeze(1).squeeze(), (2, 3)),
    (Bounded(LOW, LOW + 1), lambda spec: spec.flatten(0, 1), (6,)),
    (Bounded(LOW, LOW + 1), lambda spec: spec.unflatten(1, (3, 1)), (2, 3, 1)),
    (Bounded(LOW, LOW + 1), lambda spec: spec.view(3, -1), (3, 2)),
    (Bounded(LOW, LOW + 1), lambda spec: spec.reshape((6, 1)), (6, 1)),
    (Bounded(LOW, LOW + 1), lambda spec: spec[1], (3,)),
    (Bounded(LOW, LOW + 1), lambda spec: spec[..., 1:], (2, 2)),
    (Bounded(LOW, LOW + 1), lambda spec: spec.unbind(1)[2], (2,)),
    (Unbounded((2, 3), dtype=torch.int32), lambda spec: spec.flatten(), (6,)),
    (Categorical(4, (2, 3)), lambda spec: spec[:, 1], (2,)),
    (OneHot(4, (2, 3, 4)), lambda spec: spec.view(6, 4), (6, 4)),
    (OneHot(4, (2, 4)), lambda spec: spec.unsqueeze(0)[0, 1], (4,)),
    (MultiOneHot([2, 3], (2, 5)), lambda spec: spec[0], (5,)),
    (MultiCategorical([2, 3], (4, 2)), lambda spec: spec.reshape(2, 2, 2), (2, 2, 2)),
    (Binary(3, (2, 3)), lambda spec: spec[0], (3,)),
    (NonTensor((2, 3)), lambda spec: spec.flatten(0, 1), (6,)),
]


@pytest.mark.parametrize("place", range(len(SHAPES)))
def test_other_shapes(place: int) -> None:
    spec, change, shape = SHAPES[place]
    changed = change(spec)
    assert (type(changed), changed.shape, changed.dtype, changed.ndimension()) == (type(spec), shape, spec.dtype, len(shape))
    if isinstance(spec, Bounded):
        assert torch.equal(changed.low, change(spec.low) if callable(getattr(spec.low, "view", None)) else spec.low)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda: Bounded(LOW, LOW + 1).view(4), r"Bounded of shape \(2, 3\), reshape: expected arguments"),
        (lambda: Bounded(LOW, LOW + 1).unsqueeze(7), "unsqueeze: expected arguments"),
        (lambda: Bounded(LOW, LOW + 1).unbind(2), r"unbind: expected a dimension of shape \(2, 3\), found 2"),
        (lambda: OneHot(4, (2, 4)).flatten(0, 1), "ends with n, 4"),
        (lambda: OneHot(4).unsqueeze(-1), "ends with n, 4"),
        (lambda: MultiCategorical([2, 3]).unsqueeze(-1), "ends with that of nvec"),
        (lambda: torch.stack([Unbounded(2), Unbounded(3)]), "torch.stack: expected equal specs"),
    ],
)
def test_shapes_that_cannot_be(change: Callable[[], Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        change()


def test_a_composite_changes_all_its_leaves() -> None:
    spec = Composite(a=Bounded(LOW, LOW + 1), b={"c": OneHot(4, (2, 4))}, n=None, shape=(2,))
    wide = spec.unsqueeze(-1)
    assert (wide.shape, wide["a"].shape, wide["b", "c"].shape, wide["b"].shape) == ((2, 1), (2, 1, 3), (2, 1, 4), (2, 1))
    assert wide["n"] is None
    assert wide.flatten(0, 1) == spec == wide.squeeze(1)
    assert spec[1]["a"] == Bounded(LOW[1], LOW[1] + 1)
    assert [part["a"] for part in spec.unbind(0)] == [Bounded(LOW[i], LOW[i] + 1) for i in range(2)]
    assert torch.stack([spec, spec], 1)["a"].shape == (2, 2, 3)
    assert torch.equal(torch.stack([Bounded(LOW, LOW + 1)] * 2)[1].low, LOW)


def test_encode() -> None:
    assert torch.equal(Bounded(-1, 1, (2,)).encode([0.5, -1]), torch.tensor([0.5, -1]))
    assert torch.equal(Unbounded(2).encode(np.ones((4, 2))), torch.ones(4, 2))
    assert torch.equal(Unbounded(1).encode(3), torch.tensor([3.0]))
    assert torch.equal(Categorical(4, (2,)).encode(np.array([3, 0])), torch.tensor([3, 0]))
    assert torch.equal(OneHot(3).encode(2), torch.tensor([False, False, True]))
    assert torch.equal(OneHot(3, dtype=torch.int64).encode([[2], [0]]), torch.tensor([[[0, 0, 1]], [[1, 0, 0]]]))
    assert torch.equal(OneHot(3).encode([0, 1, 0]), torch.tensor([False, True, False]))
    assert torch.equal(MultiOneHot([2, 3]).encode([1, 2]), torch.tensor([0, 1, 0, 0, 1]).bool())
    made = Composite(a=OneHot(2), b={"c": Unbounded(2)}).encode({"a": 1, "b": {"c": [1.0, 2.0]}})
    assert made["a"].tolist() == [False, True]
    assert made["b", "c"].tolist() == [1, 2]
    assert NonTensor(()).encode("x").data == "x"
    for spec, value, text in (
        (Unbounded(2), [1, 2, 3], "expected a value whose shape ends with"),
        (OneHot(3), 3, "expected values in"),
        (Unbounded(2), "x", "expected"),
        (Composite(a=Unbounded(2)), {"b": 1}, r"expected entries among \['a'\]"),
    ):
        with pytest.raises(SpecMismatch, match=text):
            spec.encode(value)


def test_to_numpy() -> None:
    assert np.array_equal(Bounded(-1, 1, (2,)).to_numpy(torch.tensor([0.5, 1])), np.array([0.5, 1], np.float32))
    assert OneHot(3).to_numpy(torch.tensor([False, False, True])) == 2
    assert MultiOneHot([2, 3]).to_numpy(torch.tensor([0, 1, 0, 0, 1])).tolist() == [1, 2]
    assert Composite(a=OneHot(2)).to_numpy(TensorDict({"a": torch.tensor([False, True])}))["a"] == 1
    assert NonTensor(()).to_numpy(NonTensorData("x")) == "x"
    with pytest.raises(SpecMismatch, match="values in"):
        Bounded(-1, 1, (1,)).to_numpy(torch.tensor([3.0]), safe=True)


def test_twins() -> None:
    spec = OneHot(4, (2, 4), dtype=torch.int64)
    assert spec.to_categorical_spec() == Categorical(4, (2,))
    assert Categorical(4, (2,)).to_one_hot_spec() == OneHot(4, (2, 4))
    assert spec.to_one_hot_spec() == spec
    assert MultiOneHot([2, 3], (7, 5)).to_categorical_spec() == MultiCategorical([2, 3], (7, 2))
    assert MultiCategorical([2, 3]).to_one_hot_spec() == MultiOneHot([2, 3])
    value = spec.rand((5,))
    indices = spec.to_categorical(value)
    assert torch.equal(indices, value.argmax(-1))
    assert torch.equal(Categorical(4, (2,)).to_one_hot(indices), value.bool())
    assert torch.equal(MultiCategorical([2, 3]).to_one_hot(torch.tensor([1, 2])), torch.tensor([0, 1, 0, 0, 1]).bool())
    assert torch.equal(MultiOneHot([2, 3]).to_categorical(torch.tensor([0, 1, 0, 0, 1])), torch.tensor([1, 2]))
    with pytest.raises(SpecMismatch):
        Categorical(4).to_one_hot(torch.tensor(4), safe=True)


def test_masks() -> None:
    mask = torch.tensor([False, True, False, True])
    for spec in (Categorical(4, mask=mask), OneHot(4, mask=mask)):
        drawn = spec.to_categorical(spec.rand((200,)))
        assert set(drawn.tolist()) == {1, 3}
        assert spec.is_in(spec.to_categorical_spec().to_one_hot(torch.tensor(1)) if spec.ndim else torch.tensor(1))
        assert not spec.is_in(spec.encode(0) if spec.ndim == 0 else torch.tensor([True, False, False, False]))
        assert int(spec.to_categorical(spec.project(spec.encode(2) if not spec.ndim else torch.tensor([0, 0, 9, 0])))) in {1, 3}
        assert torch.equal(spec.mask, mask)
        wide = spec.expand(3, *spec.shape)
        assert set(wide.to_categorical(wide.rand((50,))).flatten().tolist()) == {1, 3}
        assert wide[0] == spec
        assert spec != type(spec)(4)
        assert len(spec.enumerate()) == 4
        assert spec.to_categorical(spec.enumerate(use_mask=True)).tolist() == [1, 3]
        twin = spec.clone()
        twin.update_mask(None)
        assert (twin.mask, spec.mask is not None) == (None, True)
    several = MultiCategorical([2, 3], mask=torch.tensor([False, True, True, False, False]))
    assert several.rand().tolist() == [1, 0]
    with pytest.raises(SpecMismatch, match="action mask"):
        OneHot(4).update_mask(torch.ones(3, dtype=torch.bool))


def test_numbers_of_values() -> None:
    assert (Categorical(4, (2,)).cardinality(), OneHot(3).cardinality(), Binary(3).cardinality()) == (4, 3, 2)
    assert (MultiCategorical([2, 3]).cardinality(), Unbounded(1).cardinality()) == (6, float("inf"))
    both = Composite(a=Categorical(3), b={"c": OneHot(2)})
    assert both.cardinality() == 6
    every = both.enumerate()
    assert every["a"].tolist() == [0, 0, 1, 1, 2, 2]
    assert every["b", "c"].tolist() == [[True, False], [False, True]] * 3
    assert MultiCategorical([2, 2]).enumerate().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert Categorical(2, (3,)).enumerate().tolist() == [[0, 0, 0], [1, 1, 1]]
    with pytest.raises(OptionError, match="expected a spec of choices"):
        Unbounded(2).enumerate()


def test_small_calls() -> None:
    spec = Bounded(-1, 1, (2,))
    assert spec.one((3,)).shape == spec.ones((3,)).shape == spec.sample((3,)).shape == (3, 2)
    assert spec.contains(torch.zeros(2))
    assert spec.clone() == spec
    assert spec.cpu() == spec == spec.clear_device_()
    assert (spec.domain, Categorical(2).domain, Composite().domain, NonTensor(()).domain) == (
        "continuous",
        "discrete",
        "composite",
        None,
    )
    spec.type_check(torch.zeros(2))
    spec.assert_is_in(torch.zeros(4, 2))
    with pytest.raises(SpecMismatch, match="expected dtype float32, found dtype float64"):
        spec.type_check(torch.zeros(2).double())
    with pytest.raises(SpecMismatch, match="key a: expected dtype bool"):
        Composite(a=OneHot(2)).type_check({"a": torch.zeros(2)})
    with pytest.raises(OptionError, match="expected domain 'continuous' for dtype float32, found 'discrete'"):
        Bounded(-1, 1, (2,), domain="discrete")
    assert Composite(batch_size=(3,)).shape == (3,)


def test_a_composite_can_be_changed_until_it_is_locked() -> None:
    spec = Composite(a=Unbounded(2), b={"c": OneHot(3)})
    spec["d"] = Categorical(2)
    spec.set(("b", "e"), Binary(2)).update({"b": {"f": Unbounded(1)}, "a": Unbounded(4)})
    assert spec.keys(True, True) == ["a", ("b", "c"), ("b", "e"), ("b", "f"), "d"]
    assert spec["a"].shape == (4,)
    assert spec.pop(("b", "e")) == Binary(2)
    assert spec.pop("x", None) is None
    del spec["d"]
    twin, other = spec.clone(), copy.copy(spec)
    twin["b", "z"] = Unbounded(1)
    assert "z" not in spec["b"]
    assert other == spec
    spec.lock_()
    assert spec.is_locked
    assert spec["b"].locked
    assert not spec.clone().is_locked
    for change in (
        lambda: spec.set("x", Unbounded(1)),
        lambda: spec["b"].set("x", Unbounded(1)),
        lambda: spec.pop("a"),
        lambda: spec.update({"a": Unbounded(1)}),
        lambda: spec.pop(("b", "c")),
    ):
        with pytest.raises(CallOrderError, match="Change a clone"):
            change()
    assert spec.unlock_().set("x", None)["x"] is None
    assert "x" in spec
    assert "x" not in spec.rand()
    assert spec.is_in(spec.rand())
    assert spec.empty().is_empty()
    assert Composite(a=Composite()).is_empty(recurse=True)
    with pytest.raises(KeyError, match="expected one of the keys"):
        spec.pop("nothing")
    with pytest.raises(OptionError, match="start with the shape"):
        Composite(shape=(2,)).set("a", Unbounded(3))
    td = spec.zeros_update(TensorDict({"keep": torch.ones(1)}))
    assert td["keep"] == 1
    assert not td["a"].any()
    assert spec.ones_update(td)["a"].all()
    assert spec.is_in(spec.rand_update(td))


def test_names_of_before() -> None:
    assert old.CompositeSpec is Composite
    assert old.BoundedTensorSpec(-1, 1, (2,)) == Bounded(-1, 1, (2,))
    assert old.UnboundedContinuousTensorSpec((2,)) == Unbounded((2,))
    assert old.UnboundedDiscreteTensorSpec((2,)) == Unbounded((2,), dtype=torch.int64)
    assert old.UnboundedDiscrete((2,), "cpu", torch.int32).dtype == torch.int32
    assert isinstance(Unbounded(2), old.UnboundedContinuous)
    assert not isinstance(Unbounded(2), old.UnboundedDiscreteTensorSpec)
    assert isinstance(Bounded(0, 3, (1,), dtype=torch.int64), old.BoundedDiscrete)
    assert (old.OneHotDiscreteTensorSpec, old.DiscreteTensorSpec) == (OneHot, Categorical)
    assert (old.MultiDiscreteTensorSpec, old.MultiOneHotDiscreteTensorSpec) == (MultiCategorical, MultiOneHot)
    assert (old.BinaryDiscreteTensorSpec, old.NonTensorSpec) == (Binary, NonTensor)
    from_data = __import__("reap.data", fromlist=["CompositeSpec"])
    assert from_data.CompositeSpec is Composite
    with pytest.raises(AttributeError, match="no attribute 'CompositSpec'"):
        _ = from_data.CompositSpec
    with pytest.raises(OptionError, match="expected domain"):
        old.UnboundedContinuous((2,), dtype=torch.int64)


def test_specs_of_torchrl_are_taken() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs: Any = pytest.importorskip("torchrl.data")
    ours = Composite(a=theirs.Bounded(-1, 1, (2,)), b=theirs.Composite(c=theirs.OneHot(3)))
    assert ours == Composite(a=Bounded(-1, 1, (2,)), b=Composite(c=OneHot(3)))
    masked = OneHot(3, mask=torch.tensor([True, False, True]))
    whole = Composite(a=masked, n=None, b={"t": NonTensor(()), "m": MultiOneHot([2, 3])})
    back = whole.as_torchrl()
    assert isinstance(back, theirs.Composite)
    assert torch.equal(back["a"].mask, torch.tensor([True, False, True]))
    assert back["n"] is None
    assert type(back["b", "m"]) is theirs.MultiOneHot
    assert Composite(x=back["a"])["x"] == masked
    for spec in (OneHot(3), Bounded(-1, 1, (2,)), Composite(), Binary(2), MultiCategorical([2]), NonTensor(())):
        assert isinstance(spec, getattr(theirs, type(spec).__name__))
        assert isinstance(spec, theirs.TensorSpec)
    assert not isinstance(Bounded(-1, 1, (2,)), theirs.OneHot)
