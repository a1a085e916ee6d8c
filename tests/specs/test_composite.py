"""Composite: the mapping, the TensorDicts it makes, and what it refuses."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict

from reap.errors import OptionError, SpecMismatch
from reap.specs import Binary, Bounded, Categorical, Composite, NonTensor, OneHot, Spec, Unbounded


@pytest.fixture
def spec():
    return Composite({"a": {"b": Bounded(-1, 1, 2), "c": OneHot(3)}}, d=Categorical(2))


def test_attributes(spec):
    assert (spec.shape, spec.batch_size, spec.ndim, spec.dtype, spec.device, spec.space) == (
        (),
        (),
        0,
        None,
        None,
        None,
    )
    assert Composite(shape=3).shape == (3,)
    assert isinstance(spec, Spec)


def test_mapping(spec):
    assert spec.keys() == ["a", "d"]
    assert spec.keys(leaves_only=True) == ["d"]
    assert spec.keys(include_nested=True) == ["a", ("a", "b"), ("a", "c"), "d"]
    assert spec.keys(True, True) == [("a", "b"), ("a", "c"), "d"]
    assert list(spec) == ["a", "d"]
    assert len(spec) == 2
    assert spec.items() == [("a", spec["a"]), ("d", spec["d"])]
    assert spec.values() == [spec["a"], spec["d"]]
    assert dict(spec.items()) == {"a": spec["a"], "d": Categorical(2)}
    assert list(spec.leaves()) == [(("a", "b"), Bounded(-1, 1, 2)), (("a", "c"), OneHot(3)), (("d",), Categorical(2))]
    assert spec["a", "b"] == spec["a"]["b"] == Bounded(-1, 1, 2)
    assert spec[("d",)] == Categorical(2)


def test_get_and_contains(spec):
    assert spec.get("d") == Categorical(2)
    assert spec.get(("a", "c")) == OneHot(3)
    assert spec.get("x") is None
    assert spec.get(("d", "x"), OneHot(2)) == OneHot(2)
    assert ("a", "b") in spec
    assert "d" in spec
    assert "x" not in spec
    assert ("d", "x") not in spec


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("x", "found 'x'."),
        (("a", "x"), "found ('a', 'x')."),
        ("observatoin", "found 'observatoin'. Did you mean 'observation'?"),
    ],
)
def test_a_missing_key_is_named(spec, key, text):
    with pytest.raises(KeyError) as caught:
        spec.with_("observation", Unbounded(3))[key]
    assert "expected one of the keys ['a', ('a', 'b')" in caught.value.args[0]
    assert caught.value.args[0].endswith(text)


def test_rand(spec):
    td = spec.rand((4, 2), generator=torch.Generator().manual_seed(0))
    assert isinstance(td, TensorDict)
    assert (td.batch_size, td.device) == ((4, 2), None)
    assert {key: value.shape for key, value in td.items(True, True)} == {
        ("a", "b"): (4, 2, 2),
        ("a", "c"): (4, 2, 3),
        "d": (4, 2),
    }
    assert td["a"].batch_size == (4, 2)
    assert spec.is_in(td)
    again = spec.rand((4, 2), generator=torch.Generator().manual_seed(0))
    assert bool((td == again).all())
    with pytest.raises(OptionError, match="give it to the leaf that it belongs to"):
        spec.rand(mask=torch.ones(3, dtype=torch.bool))


def test_zero(spec):
    for td in (spec.zero(3), spec.zeros((3,))):
        assert td.batch_size == (3,)
        assert not any(value.any() for value in td.values(True, True))
    assert spec.expand(5).zero((3,)).batch_size == (3, 5)
    assert Composite(device="cpu").zero().device == torch.device("cpu")


def test_leaves_start_with_the_shape():
    spec = Composite(a=Unbounded((3, 2)), n={"b": Categorical(2, (3,))}, shape=(3,))
    assert spec["n"].shape == (3,)
    assert spec.rand().batch_size == (3,)
    with pytest.raises(OptionError) as caught:
        Composite(a=Unbounded((2,)), shape=(3,))
    assert str(caught.value) == (
        "Composite: expected the spec under 'a' to start with the shape (3,), found (2,). "
        "Put the batch dimensions in front: spec.expand(*(3,), *spec.shape)."
    )
    with pytest.raises(OptionError, match="expected the spec under 'b' to start"):
        Composite(n=Composite(b=Unbounded(2)), shape=(3,))


def test_a_nested_composite_takes_the_shape_of_its_parent():
    inner = Composite(b=Unbounded((3, 2)))
    assert Composite(n=inner, shape=3)["n"].shape == (3,)
    assert Composite(n=inner.expand(4))["n"].shape == (4,)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": 3}, "expected a spec or a mapping under 'a', found a int"),
        ({3: OneHot(3)}, "strings or tuples of strings, found 3"),
        ({("a", 3): OneHot(3)}, "strings or tuples of strings, found ('a', 3)"),
        ({(): OneHot(3)}, "strings or tuples of strings, found ()"),
        (
            {"a": OneHot(3), ("a", "b"): OneHot(3)},
            "key ('a', 'b') to lead through Composites, found a OneHot under 'a'",
        ),
    ],
)
def test_refused(given, text):
    with pytest.raises(OptionError) as caught:
        Composite(given)
    assert text in str(caught.value)


def test_tuple_keys_build_a_tree(spec):
    given = {("a", "b"): Bounded(-1, 1, 2), ("a", "c"): OneHot(3), "d": Categorical(2)}
    assert Composite(given) == spec
    assert Composite({"a": Composite(b=Bounded(-1, 1, 2)), **{k: given[k] for k in (("a", "c"), "d")}}) == spec


def test_with_derives_a_changed_copy(spec):
    changed = spec.with_("d", Categorical(5)).with_(("a", "e"), Binary(2)).with_(("x", "y"), Unbounded(1))
    assert changed.keys(True, True) == [("a", "b"), ("a", "c"), ("a", "e"), "d", ("x", "y")]
    assert changed["d"] == Categorical(5)
    assert spec.keys(True, True) == [("a", "b"), ("a", "c"), "d"]
    assert Composite(shape=3, device="cpu").with_("a", {"b": Unbounded(3)})["a"].shape == (3,)
    with pytest.raises(OptionError, match="start with the shape"):
        Composite(shape=3).with_("a", Unbounded(2))
    with pytest.raises(OptionError, match="lead through Composites"):
        spec.with_(("d", "x"), Unbounded(2))


def test_attributes_cannot_be_set(spec):
    with pytest.raises(AttributeError, match="specs are immutable"):
        spec.shape = (2,)


def test_is_in(spec):
    td = spec.rand()
    assert spec.is_in(td)
    assert spec.is_in(td.to_dict())
    assert spec.is_in(td.clone().set("extra", torch.zeros(1)))
    assert not spec.is_in(td.exclude("d"))
    assert not spec.is_in(td.clone().set(("a", "b"), torch.full((2,), 3.0)))
    assert spec.is_in(spec.rand((4,)))
    assert not spec.is_in(torch.zeros(3))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda td: td.set(("a", "b"), torch.tensor([0.0, 3.0])),
            "env 0: key ('a', 'b'): expected values in [-1.0, 1.0], found 3.0 at index (1,).",
        ),
        (
            lambda td: td.set("d", torch.zeros(1, dtype=torch.int64)),
            (
                "env 0: key d: expected shape () and dtype int64, found shape (1,) and dtype int64. "
                "It has as many elements: value.reshape(()) makes it fit."
            ),
        ),
        (lambda td: td.exclude("d"), "env 0: expected the key 'd', found only the keys ['a']."),
        (
            lambda td: td.exclude("a").set("aa", torch.zeros(1)),
            "env 0: expected the key 'a', found only the keys ['d', 'aa']. Did you mean 'aa'?",
        ),
        (
            lambda td: td.exclude(("a", "c")),
            "env 0: key a: expected the key 'c', found only the keys ['b'].",
        ),
        (
            lambda td: td.set("a", torch.zeros(3)),
            "env 0: key a: expected a TensorDict or dict with the keys ['b', 'c'], found a Tensor.",
        ),
    ],
)
def test_validate_says_what_is_wrong(spec, change, text):
    with pytest.raises(SpecMismatch) as caught:
        spec.validate(change(spec.zero().set(("a", "c"), torch.tensor([True, False, False]))), where="env 0")
    assert str(caught.value) == text


def test_validate_puts_the_key_in_front(spec):
    with pytest.raises(SpecMismatch, match=r"key \('next', 'a', 'b'\): expected values"):
        spec.validate({"a": {"b": torch.full((2,), 3.0)}}, key="next")
    spec.validate(spec.rand((4,)), batched=True)
    with pytest.raises(SpecMismatch):
        spec.validate(spec.rand((4,)))


def test_project(spec):
    given = TensorDict({"a": {"b": torch.tensor([3.0, -3.0]), "c": torch.tensor([0.0, 0.9, 0.1])}, "d": 7, "e": 1})
    result = spec.project(given)
    assert spec.is_in(result)
    assert result["a", "b"].tolist() == [1, -1]
    assert result["a", "c"].tolist() == [False, True, False]
    assert (result["d"].item(), result["e"].item()) == (1, 1)
    assert given["a", "b"].tolist() == [3, -3]
    assert given["d"].item() == 7
    plain = spec.project({"a": {"b": torch.zeros(2), "c": torch.ones(3)}, "d": torch.tensor(-1)})
    assert plain["d"].item() == 0
    with pytest.raises(KeyError):
        spec.project({})


def test_expand(spec):
    wide = spec.expand(4, 5)
    assert wide.shape == (4, 5)
    assert [leaf.shape for _, leaf in wide.leaves()] == [(4, 5, 2), (4, 5, 3), (4, 5)]
    assert wide["a"].shape == (4, 5)
    assert wide.expand(3, 4, 5)["a", "b"].shape == (3, 4, 5, 2)
    assert Composite(a=Unbounded((1, 2)), shape=1).expand(6)["a"].shape == (6, 2)
    with pytest.raises(OptionError, match=r"ends with \(4, 5\)"):
        wide.expand(2)


def test_to(spec):
    spec = spec.with_("text", NonTensor(()))
    double = spec.to(torch.float64)
    assert [leaf.dtype for _, leaf in double.leaves()] == [torch.float64, torch.bool, torch.int64, None]
    meta = spec.to("meta")
    assert meta.device == meta["a"].device == meta["a", "b"].device == torch.device("meta")
    assert Composite(a=Unbounded(2), device="meta")["a"].device == torch.device("meta")


def test_copies_and_equality(spec):
    for twin in (pickle.loads(pickle.dumps(spec)), copy.copy(spec), copy.deepcopy(spec), Composite(dict(spec.items()))):
        assert twin == spec
        assert hash(twin) == hash(spec)
        assert repr(twin) == repr(spec)
    assert Composite(x=OneHot(2), y=OneHot(3)) == Composite(y=OneHot(3), x=OneHot(2))
    others = [spec.with_("d", OneHot(2)), spec.expand(2), spec.to("cpu"), Composite(), "spec"]
    assert all(spec != other for other in others)


def test_repr(spec):
    assert repr(spec) == (
        "Composite(\n"
        "    a=Composite(\n"
        "        b=Bounded(low=-1.0, high=1.0, shape=(2,), dtype=float32),\n"
        "        c=OneHot(n=3, shape=(3,), dtype=bool),\n"
        "    ),\n"
        "    d=Categorical(n=2, shape=(), dtype=int64),\n"
        ")"
    )
    assert repr(Composite()) == "Composite()"
    assert repr(Composite(shape=2, device="cpu")) == "Composite(\n    shape=(2,),\n    device='cpu',\n)"
