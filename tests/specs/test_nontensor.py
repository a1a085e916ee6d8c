"""NonTensor."""

import copy
import pickle

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from reap.errors import OptionError
from reap.specs import Composite, NonTensor


def test_attributes():
    spec = NonTensor()
    assert (spec.shape, spec.dtype, spec.device, spec.space, spec.example_data) == ((1,), None, None, None, None)
    assert NonTensor((), device="cpu").device == torch.device("cpu")
    assert NonTensor((), dtype=torch.int8).dtype is None


def test_rand_and_zero_give_the_example():
    spec = NonTensor((), example_data="a")
    for value in (spec.rand(), spec.zero(), spec.zeros()):
        assert isinstance(value, NonTensorData)
        assert (value.data, value.batch_size) == ("a", ())
    for value in (spec.rand((2, 3)), spec.expand(2, 3).zero()):
        assert isinstance(value, NonTensorStack)
        assert value.batch_size == (2, 3)
        assert value.tolist() == [["a"] * 3] * 2
    assert spec.rand((2, 0)).batch_size == (2, 0)
    assert NonTensor((2,), example_data=["x", 1]).rand().tolist() == [["x", 1]] * 2
    with pytest.raises(OptionError, match="expected no mask"):
        spec.rand(mask=torch.ones(1, dtype=torch.bool))


def test_in_a_composite():
    spec = Composite(text=NonTensor((2,), example_data="a"), shape=(2,))
    td = spec.rand(3)
    assert isinstance(td, TensorDict)
    assert td.batch_size == (3, 2)
    assert td["text"] == [["a", "a"]] * 3
    assert spec.is_in(td)
    assert not spec.is_in(td.exclude("text"))
    assert spec.to(torch.float64) == spec


def test_any_object_is_in():
    assert NonTensor().is_in(object())
    NonTensor().validate(None)
    assert NonTensor().project("text") == "text"


def test_copies_equality_and_repr():
    spec = NonTensor((), example_data="a")
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec == NonTensor((), example_data="b")
    assert pickle.loads(pickle.dumps(spec)).example_data == "a"
    assert hash(spec) == hash(NonTensor(()))
    assert spec != NonTensor((1,))
    assert spec != "a"
    assert spec.to("meta").device == torch.device("meta")
    assert repr(spec) == "NonTensor(shape=(), example_data='a')"
    with pytest.raises(AttributeError, match="immutable"):
        spec.shape = (2,)
