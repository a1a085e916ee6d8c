"""Unbounded; what it shares with Bounded is in test_continuous.py."""

import pytest
import torch

from reap.errors import OptionError, SpecMismatch
from reap.specs import Unbounded

INF = float("inf")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_unbounded_attributes():
    spec = Unbounded()
    assert (spec.shape, spec.dtype, spec.device) == ((1,), torch.float32, torch.device("cpu"))
    assert (spec.low.item(), spec.high.item()) == (-INF, INF)
    assert Unbounded(2, dtype=torch.bool).high.tolist() == [True, True]
    assert Unbounded(3).shape == (3,)


def test_unbounded_rand():
    values = Unbounded(2).rand(10_000, generator=seeded())
    assert values.mean() == pytest.approx(0, abs=0.03)
    assert values.std() == pytest.approx(1, abs=0.03)
    counts = torch.bincount(Unbounded((), dtype=torch.uint8).rand(25_600, generator=seeded()).long(), minlength=256)
    assert float(((counts - 100) ** 2 / 100).sum()) < 350  # chi-square, 255 degrees of freedom, p = 1e-4
    assert Unbounded(8, dtype=torch.int64).rand(generator=seeded()).abs().max() > 2**60


def test_unbounded_is_in_and_validate():
    spec = Unbounded(2)
    assert spec.is_in(torch.tensor([INF, -1e30]))
    assert not spec.is_in(torch.zeros(3))
    with pytest.raises(SpecMismatch) as caught:
        spec.validate(torch.tensor([0.0, float("nan")]), key="reward")
    assert str(caught.value) == "key reward: expected values in [-inf, inf], found NaN at index (1,)."


def test_unbounded_refuses_dtypes_without_arithmetic():
    with pytest.raises(OptionError, match="found uint64"):
        Unbounded(3, dtype=torch.uint64)
