"""Bounded and Unbounded."""

import copy
import pickle

import numpy as np
import pytest
import torch

from reap.errors import OptionError, SpecMismatch
from reap.specs import Bounded, Unbounded
from reap.specs.spaces import ContinuousBox

INF = float("inf")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_bounded_attributes():
    spec = Bounded(-1, torch.tensor([1.0, 2.0, 3.0]), dtype=torch.float64)
    assert spec.shape == (3,)
    assert spec.ndim == 1
    assert spec.dtype == torch.float64
    assert spec.device == torch.device("cpu")
    assert spec.space.low.tolist() == [-1, -1, -1]
    assert spec.space.high.tolist() == [1, 2, 3]
    assert spec.low.dtype == spec.high.dtype == torch.float64
    assert isinstance(spec.space, ContinuousBox)


@pytest.mark.parametrize(
    ("arguments", "shape", "dtype"),
    [
        ({"low": -1, "high": 1, "shape": (2, 3)}, (2, 3), torch.float32),
        ({"low": -1, "high": 1, "shape": 3}, (3,), torch.float32),
        ({"low": -1, "high": 1, "shape": ()}, (), torch.float32),
        ({"low": torch.zeros(2).double(), "high": torch.ones(2).double()}, (2,), torch.float32),
        ({"low": np.zeros(2), "high": np.ones(2)}, (2,), torch.float32),
        ({"low": torch.zeros(2, dtype=torch.int64), "high": torch.ones(2, dtype=torch.int64)}, (2,), torch.float32),
        ({"low": 0, "high": torch.ones(3)}, (3,), torch.float32),
        ({"low": 0, "high": torch.ones(3), "shape": (4, 3)}, (4, 3), torch.float32),
        ({"low": 0, "high": 255, "shape": (3,), "dtype": torch.uint8}, (3,), torch.uint8),
        ({"low": 0, "high": 9, "shape": (3,), "dtype": "int64"}, (3,), torch.int64),
    ],
)
def test_bounded_shape_and_dtype_as_in_torchrl(arguments, shape, dtype):
    spec = Bounded(**arguments)
    assert (spec.shape, spec.dtype) == (shape, dtype)
    value = spec.rand((5,), generator=seeded())
    assert (value.shape, value.dtype) == ((5, *shape), dtype)
    assert spec.is_in(value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"low": -1, "high": 1}, "Give shape=()"),
        ({"low": None, "high": 1, "shape": 3}, "found no low"),
        ({"low": 0, "high": None, "shape": 3}, "found no high"),
        ({"low": 0, "high": float("nan"), "shape": 3}, "found NaN at index ()"),
        ({"low": 0, "high": torch.tensor([1.0, -1.0])}, "found low 0.0 and high -1.0 at index (1,)"),
        ({"low": torch.zeros(2), "high": torch.ones(3)}, "low of shape (2,), high of shape (3,)."),
        ({"low": torch.zeros(2), "high": 1, "shape": (3,)}, "low of shape (2,), high of shape () and shape (3,)."),
        ({"low": torch.zeros(2), "high": 1, "shape": ()}, "and shape ()"),
        ({"low": 0, "high": 256, "shape": 3, "dtype": torch.uint8}, "[0, 255] for dtype uint8, found 256"),
        ({"low": 0.5, "high": 3, "shape": 3, "dtype": torch.int64}, "found 0.5"),
        ({"low": 0, "high": 1, "shape": 3, "dtype": torch.complex64}, "found complex64"),
        ({"low": 0, "high": 1, "shape": 3, "dtype": "int65"}, "found 'int65'"),
        ({"low": 0, "high": 1, "shape": -3}, "found (-3,)"),
    ],
)
def test_bounded_refuses(arguments, text):
    with pytest.raises(OptionError) as caught:
        Bounded(**arguments)
    assert text in str(caught.value)


def test_infinite_bounds_of_whole_numbers_are_the_ends_of_the_dtype():
    spec = Bounded(torch.tensor([-INF, 0]), INF, dtype=torch.int16)
    assert spec.low.tolist() == [-32768, 0]
    assert spec.high.tolist() == [32767, 32767]


def test_bounds_are_copies_and_equal_ones_are_held_once():
    bounds = np.array([1.0, 2.0])
    spec = Bounded(0, bounds)
    bounds[0] = -5
    assert spec.high.tolist() == [1, 2]
    image = Bounded(np.zeros((84, 84, 4), np.uint8), np.full((84, 84, 4), 255, np.uint8), dtype=torch.uint8)
    assert image.low.untyped_storage().nbytes() == 1
    assert len(pickle.dumps(image)) < 2000


def test_rand_is_uniform_between_the_bounds():
    spec = Bounded(torch.tensor([-1.0, 10.0]), torch.tensor([1.0, 30.0]))
    values = spec.rand(20_000, generator=seeded())
    assert spec.is_in(values)
    unit = (values - spec.low) / (spec.high - spec.low)
    for column in unit.unbind(-1):
        counts = torch.histc(column, 10, 0, 1)
        assert float(((counts - 2000) ** 2 / 2000).sum()) < 33.7  # chi-square, 9 degrees of freedom, p = 1e-4


def test_rand_repeats_with_a_generator_and_follows_the_global_seed():
    spec = Bounded(-1, 1, 3)
    assert torch.equal(spec.rand(generator=seeded(7)), spec.rand(generator=seeded(7)))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = spec.rand()
        torch.manual_seed(1)
        assert torch.equal(first, spec.rand())


def test_rand_of_half_open_and_huge_bounds_stays_inside():
    most = torch.finfo(torch.float32).max
    spec = Bounded(torch.tensor([0.0, -INF, -INF, -most]), torch.tensor([INF, 1.0, INF, most]))
    values = spec.rand(5_000, generator=seeded())
    assert bool(values.isfinite().all())
    assert spec.is_in(values)
    assert values[:, 0].mean() == pytest.approx(1, abs=0.1)
    assert values[:, 1].mean() == pytest.approx(0, abs=0.1)
    assert values[:, 2].std() == pytest.approx(1, abs=0.1)
    assert (values[:, 3] / most).mean() == pytest.approx(0, abs=0.05)


def test_rand_of_whole_numbers_reaches_both_bounds_uniformly():
    spec = Bounded(-2, 3, (), dtype=torch.int32)
    values = spec.rand(12_000, generator=seeded())
    counts = torch.bincount(values.long() + 2, minlength=6)
    assert counts.shape == (6,)
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 25.7  # chi-square, 5 degrees of freedom, p = 1e-4


@pytest.mark.parametrize(("low", "high"), [(-(2**63), 2**63 - 1), (-(2**63), 0), (-(2**62), 2**63 - 1), (0, 2**63 - 1), (5, 5)])
def test_rand_of_the_widest_whole_numbers(low, high):
    spec = Bounded(low, high, (), dtype=torch.int64)
    values = spec.rand(2_000, generator=seeded())
    assert spec.is_in(values)
    if high > low:
        share = (values.double() - low) / (float(high) - low)
        assert 0 <= share.min() < 0.01
        assert 0.99 < share.max() <= 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rand_of_every_float(dtype):
    value = Bounded(-1, 1, 100, dtype=dtype).rand(generator=seeded())
    assert value.dtype == dtype
    assert value.unique().numel() > 50


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64]
)
def test_every_dtype_of_whole_numbers(dtype):
    spec = Bounded(0, 1, 50, dtype=dtype)
    value = spec.rand(generator=seeded())
    assert value.dtype == dtype
    assert set(value.long().tolist()) == {0, 1}
    assert spec.is_in(value)
    assert repr(spec) == f"Bounded(low=0, high=1, shape=(50,), dtype={str(dtype)[6:]})"


def test_rand_and_zero_of_no_elements():
    spec = Bounded(-1, 1, (0, 3))
    assert spec.rand(2).shape == spec.zero(2).shape == (2, 0, 3)
    assert spec.is_in(spec.rand(2))
    assert repr(spec) == "Bounded(low=[], high=[], shape=(0, 3), dtype=float32)"
    assert Bounded(0, 9, (0,), dtype=torch.int64).rand().shape == (0,)


def test_zero_and_zeros():
    spec = Bounded(1, 2, 3, dtype=torch.int32)
    assert torch.equal(spec.zero((2,)), torch.zeros(2, 3, dtype=torch.int32))
    assert torch.equal(spec.zeros(2), torch.zeros(2, 3, dtype=torch.int32))
    assert torch.equal(spec.zero(), torch.zeros(3, dtype=torch.int32))


def test_rand_takes_no_mask():
    with pytest.raises(OptionError, match="expected no mask"):
        Bounded(-1, 1, 3).rand(mask=torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        (torch.tensor([-1.0, 1.0]), True),
        (torch.zeros(4, 3, 2), True),
        (np.zeros(2, np.float32), True),
        (torch.tensor([-1.0, 1.1]), False),
        (torch.tensor([0.0, float("nan")]), False),
        (torch.zeros(3), False),
        (torch.zeros(()), False),
        (torch.zeros(2, dtype=torch.float64), False),
        ([0.0, 0.0], False),
        (np.array(["a", "b"]), False),
    ],
)
def test_is_in(value, inside):
    assert Bounded(-1, 1, 2).is_in(value) is inside


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            torch.tensor([[0.0, 0.0], [0.0, 3.0]]),
            "env 1: key action: expected values in [-1.0, 2.0], found 3.0 at index (1, 1).",
        ),
        (
            torch.tensor([[0.0, float("nan")], [0.0, 3.0]]),
            "env 1: key action: expected values in [-1.0, 2.0], found NaN at index (0, 1).",
        ),
        (
            torch.zeros(2),
            "env 1: key action: expected shape (2, 2) and dtype float32, found shape (2,) and dtype float32.",
        ),
        (
            torch.zeros(4),
            (
                "env 1: key action: expected shape (2, 2) and dtype float32, found shape (4,) and dtype float32. "
                "It has as many elements: value.reshape((2, 2)) makes it fit."
            ),
        ),
        (
            torch.zeros(2, 2, dtype=torch.float64),
            (
                "env 1: key action: expected shape (2, 2) and dtype float32, found shape (2, 2) and dtype float64. "
                "Cast it: value.to(torch.float32); GymEnv(dtype=torch.float32) casts an env's float observations."
            ),
        ),
        (
            torch.zeros(2, 2, dtype=torch.int64),
            (
                "env 1: key action: expected shape (2, 2) and dtype float32, found shape (2, 2) and dtype int64. "
                "Cast it: value.to(torch.float32)."
            ),
        ),
        (
            [0.0],
            (
                "env 1: key action: expected a tensor of shape (2, 2) and dtype float32, found a list. "
                "Make it one with torch.as_tensor()."
            ),
        ),
    ],
)
def test_validate_says_what_is_wrong(value, text):
    spec = Bounded(-1, torch.tensor([[1.0, 1.0], [1.0, 2.0]]), (2, 2))
    if "[-1.0, 2.0]" in text:
        spec = Bounded(-1, 2, (2, 2))
    with pytest.raises(SpecMismatch) as caught:
        spec.validate(value, key="action", where="env 1")
    assert str(caught.value) == text


def test_validate_names_the_bounds_of_the_bad_element():
    with pytest.raises(SpecMismatch) as caught:
        Bounded(0, torch.tensor([1.0, 9.0])).validate(torch.tensor([0.0, 10.0]), key=("next", "x"))
    assert str(caught.value) == "key ('next', 'x'): expected values in [0.0, 9.0], found 10.0 at index (1,)."


def test_validate_allows_batch_dimensions_only_when_told():
    spec = Bounded(-1, 1, 2)
    spec.validate(torch.zeros(2))
    spec.validate(torch.zeros(5, 2), batched=True)
    with pytest.raises(SpecMismatch):
        spec.validate(torch.zeros(5, 2))


def test_validate_of_a_scalar_leaves_out_the_index():
    with pytest.raises(SpecMismatch) as caught:
        Bounded(0, 1, ()).validate(torch.tensor(2.0))
    assert str(caught.value) == "expected values in [0.0, 1.0], found 2.0."


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        (Bounded(-1, 1, 3), torch.tensor([-3.0, 0.5, INF]), torch.tensor([-1.0, 0.5, 1.0])),
        (Bounded(-1, 1, 2), torch.tensor([float("nan"), -INF]), torch.tensor([0.0, -1.0])),
        (Bounded(1, 2, 1), torch.tensor([float("nan")]), torch.tensor([1.0])),
        (Bounded(-1, 1, 2), torch.tensor([-3, 0]), torch.tensor([-1.0, 0.0])),
        (Bounded(-1, 1, 2), np.array([3.0, 0.25]), torch.tensor([1.0, 0.25])),
        (Bounded(0, 9, 3, dtype=torch.int64), torch.tensor([-0.6, 3.6, INF]), torch.tensor([0, 4, 9])),
        (Bounded(0, 9, 2, dtype=torch.uint8), torch.tensor([-4, 300]), torch.tensor([0, 9], dtype=torch.uint8)),
        (Unbounded(1, dtype=torch.int64), torch.tensor([INF]), torch.tensor([2**63 - 1])),
        (Unbounded(2), torch.tensor([[float("nan"), INF]]), torch.tensor([[0.0, INF]])),
    ],
)
def test_project(spec, value, expected):
    result = spec.project(value)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)
    assert spec.is_in(result)


@pytest.mark.parametrize(("value", "found"), [(torch.zeros(3), "found shape (3,)"), ("text", "found no tensor")])
def test_project_refuses_what_does_not_fit(value, found):
    with pytest.raises(SpecMismatch) as caught:
        Bounded(-1, 1, 2).project(value)
    assert str(caught.value) == f"Bounded.project: expected a tensor whose shape ends with (2,), {found}."


def test_expand():
    spec = Bounded(0, torch.tensor([1.0, 2.0]))
    for wide in (spec.expand(3, 2), spec.expand((3, 2)), spec.expand(3, -1), spec.expand([3, 2])):
        assert wide.shape == (3, 2)
        assert wide.high.tolist() == [[1, 2]] * 3
    assert spec.shape == (2,)
    assert Unbounded((1, 2)).expand(4, 2).shape == (4, 2)


@pytest.mark.parametrize("shape", [(3,), (3, 3), (), (-1, 2), (2, 0)])
def test_expand_refuses(shape):
    with pytest.raises(OptionError, match=r"expected a shape that ends with \(2,\)"):
        Bounded(0, 1, 2).expand(*shape)


def test_to():
    spec = Bounded(0, 1, 2)
    assert spec.to(torch.float64) == Bounded(0, 1, 2, dtype=torch.float64)
    assert spec.to(torch.int64).high.dtype == torch.int64
    assert spec.to("cpu") == spec
    for moved in (Unbounded(2).to("meta"), spec.to("meta")):
        assert moved.zero().device.type == moved.low.device.type == "meta"
    assert spec.to(torch.device("cpu")) == spec
    with pytest.raises(OptionError, match=r"found 0\.5"):
        Bounded(0.5, 1, 2).to(torch.int64)
    assert Unbounded(2).to(torch.uint8).space.high.tolist() == [255, 255]


@pytest.mark.parametrize(
    "spec",
    [Bounded(-1, 1, 3), Bounded(0, torch.arange(1.0, 4.0)), Unbounded((2, 3)), Unbounded(2, dtype=torch.int8)],
)
def test_copies_are_equal(spec):
    for twin in (pickle.loads(pickle.dumps(spec)), copy.copy(spec), copy.deepcopy(spec), spec.expand(*spec.shape)):
        assert twin == spec
        assert hash(twin) == hash(spec)
        assert repr(twin) == repr(spec)


def test_unequal():
    spec = Bounded(-1, 1, 3)
    others = [
        Bounded(-1, 2, 3),
        Bounded(-1, 1, 4),
        Bounded(-1, 1, 3, dtype=torch.float64),
        Unbounded(3),
        "Bounded",
    ]
    assert all(spec != other for other in others)
    assert spec.space != "box"
    assert len({spec, Bounded(-1, 1, 3), Unbounded(3)}) == 2
    assert hash(spec.space) == hash(Bounded(-1, 1, 3).space)


def test_immutable():
    spec = Bounded(-1, 1, 3)
    with pytest.raises(AttributeError, match=r"Bounded.shape cannot be set: specs are immutable. Derive"):
        spec.shape = (4,)
    with pytest.raises(AttributeError, match="specs are immutable"):
        spec.anything = 1
    with pytest.raises(AttributeError, match="specs are immutable"):
        del spec.shape


def test_repr():
    assert repr(Bounded(-1, 1, 3)) == "Bounded(low=-1.0, high=1.0, shape=(3,), dtype=float32)"
    assert repr(Bounded(-4.8, 4.8, 1)) == "Bounded(low=-4.8, high=4.8, shape=(1,), dtype=float32)"
    assert repr(Bounded(0, torch.tensor([1.0, 2.0]))) == ("Bounded(low=0.0, high=[1.0, 2.0], shape=(2,), dtype=float32)")
    assert repr(Bounded(0, torch.arange(1.0, 10.0))) == "Bounded(low=0.0, high=1.0..9.0, shape=(9,), dtype=float32)"
    assert repr(Unbounded(3, device="meta")) == "Unbounded(shape=(3,), dtype=float32, device='meta')"
