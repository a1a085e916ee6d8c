"""Binary."""

import copy
import pickle

import pytest
import torch

from reap.errors import OptionError, SpecMismatch
from reap.specs import Binary
from reap.specs.spaces import CategoricalBox


@pytest.mark.parametrize(
    ("spec", "shape", "dtype"),
    [
        (Binary(4), (4,), torch.int8),
        (Binary(shape=(3, 2)), (3, 2), torch.int8),
        (Binary(3, (2, 3)), (2, 3), torch.int8),
        (Binary(shape=()), (), torch.int8),
        (Binary(4, dtype=torch.bool), (4,), torch.bool),
        (Binary(4, dtype=None), (4,), torch.int8),
        (Binary(4, dtype=torch.float32), (4,), torch.float32),
    ],
)
def test_layout_as_in_torchrl(spec, shape, dtype):
    assert (spec.shape, spec.dtype, spec.n, spec.space) == (shape, dtype, 2, CategoricalBox(2))
    value = spec.rand((500, 2), generator=torch.Generator().manual_seed(0))
    assert (value.shape, value.dtype) == ((500, 2, *shape), dtype)
    assert spec.is_in(value)
    assert set(value.long().flatten().tolist()) == {0, 1}
    assert value.float().mean() == pytest.approx(0.5, abs=0.06)
    assert torch.equal(spec.zero(2), torch.zeros((2, *shape), dtype=dtype))


def test_refused():
    with pytest.raises(OptionError, match="found neither"):
        Binary()
    with pytest.raises(OptionError, match=r"ends with n, 4, found \(3,\)"):
        Binary(4, (3,))
    with pytest.raises(OptionError, match="expected no mask"):
        Binary(4).rand(mask=torch.ones(4, dtype=torch.bool))


def test_is_in_and_validate():
    spec = Binary(2)
    inside = [(a, b) for a in (-1, 0, 1, 2) for b in (0, 1) if spec.is_in(torch.tensor([a, b], dtype=torch.int8))]
    assert inside == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(SpecMismatch) as caught:
        spec.validate(torch.tensor([0, 2], dtype=torch.int8), key="lamps")
    assert str(caught.value) == "key lamps: expected values in [0, 1], found 2 at index (1,)."
    with pytest.raises(SpecMismatch, match=r"expected whole numbers, found 0\.5 at index \(0,\)"):
        Binary(2, dtype=torch.float32).validate(torch.tensor([0.5, 1.0]))


def test_project_expand_to_copies_repr():
    spec = Binary(3)
    assert spec.project(torch.tensor([-1.0, 3.0, 0.6])).tolist() == [0, 1, 1]
    assert spec.project(torch.tensor([-1, 3, 1])).dtype == torch.int8
    assert spec.expand(2, 3) == Binary(3, (2, 3))
    assert spec.to(torch.bool) == Binary(3, dtype=torch.bool)
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec != Binary(4)
    assert repr(spec) == "Binary(shape=(3,), dtype=int8)"
