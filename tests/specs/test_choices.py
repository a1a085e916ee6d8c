"""Categorical, OneHot, MultiCategorical, MultiOneHot: what they share, and what each does."""

import copy
import pickle

import numpy as np
import pytest
import torch

from reap.errors import OptionError, SpecMismatch
from reap.specs import Categorical, MultiCategorical, MultiOneHot, OneHot
from reap.specs.spaces import BoxList, CategoricalBox

T, F = True, False


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def chi_square(counts):
    counts = counts.double()
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


@pytest.mark.parametrize(
    ("spec", "shape", "dtype", "space"),
    [
        (Categorical(4), (), torch.int64, CategoricalBox(4)),
        (Categorical(4, (2, 1)), (2, 1), torch.int64, CategoricalBox(4)),
        (Categorical(2, 1, dtype=torch.bool), (1,), torch.bool, CategoricalBox(2)),
        (Categorical(4, dtype=None), (), torch.int64, CategoricalBox(4)),
        (OneHot(4), (4,), torch.bool, CategoricalBox(4)),
        (OneHot(4, (2, 4)), (2, 4), torch.bool, CategoricalBox(4)),
        (OneHot(4, dtype=torch.int64), (4,), torch.int64, CategoricalBox(4)),
        (OneHot(4, dtype=None), (4,), torch.bool, CategoricalBox(4)),
        (MultiCategorical([2, 3]), (2,), torch.int64, BoxList((CategoricalBox(2), CategoricalBox(3)))),
        (MultiCategorical(torch.tensor([2, 3]), (4, 2)), (4, 2), torch.int64, None),
        (MultiCategorical([[2, 3, 4], [3, 3, 3]]), (2, 3), torch.int64, None),
        (MultiCategorical([2]), (1,), torch.int64, BoxList((CategoricalBox(2),))),
        (MultiOneHot([2, 3]), (5,), torch.bool, BoxList((CategoricalBox(2), CategoricalBox(3)))),
        (MultiOneHot([2, 3], (4, 5)), (4, 5), torch.bool, None),
        (MultiOneHot([[2, 3], [4, 5]], dtype=torch.int64), (14,), torch.int64, None),
    ],
)
def test_shape_dtype_and_space_as_in_torchrl(spec, shape, dtype, space):
    assert (spec.shape, spec.dtype, spec.device, spec.ndim) == (shape, dtype, torch.device("cpu"), len(shape))
    assert space is None or spec.space == space
    for batch in ((), (2,), (2, 3)):
        value = spec.rand(batch, generator=seeded())
        assert (value.shape, value.dtype) == ((*batch, *shape), dtype)
        assert spec.is_in(value)
        spec.validate(value, batched=True)
        assert torch.equal(spec.zero(batch), torch.zeros((*batch, *shape), dtype=dtype))
        assert torch.equal(spec.project(value), value)


def test_counts():
    assert Categorical(4).n == OneHot(4).n == Categorical(4).space.n == 4
    assert MultiCategorical([2, 3]).nvec.tolist() == MultiOneHot([2, 3]).nvec.tolist() == [2, 3]
    assert MultiCategorical([2, 3], (2, 2)).nvec.tolist() == [[2, 3], [2, 3]]
    space = MultiOneHot([2, 3]).space
    assert (len(space), space[1].n, [box.n for box in space]) == (2, 3, [2, 3])


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Categorical(0), "Categorical: expected one choice or more, found (0,)."),
        (lambda: OneHot(0), "OneHot: expected one choice or more, found (0,)."),
        (lambda: MultiCategorical([]), "MultiCategorical: expected one choice or more, found ()."),
        (lambda: MultiOneHot([2, 0]), "MultiOneHot: expected one choice or more, found (2, 0)."),
        (lambda: OneHot(4, (3,)), "OneHot: expected a shape that ends with n, 4, found (3,)."),
        (lambda: OneHot(4, ()), "OneHot: expected a shape that ends with n, 4, found ()."),
        (
            lambda: MultiOneHot([2, 3], (4,)),
            "MultiOneHot: expected a shape that ends with the sum of nvec, 5, found (4,).",
        ),
        (
            lambda: MultiCategorical([2, 3], (3,)),
            "MultiCategorical: expected a shape that ends with that of nvec, (2,), found (3,).",
        ),
        (
            lambda: MultiCategorical(torch.tensor(3)),
            "MultiCategorical: expected a shape that ends with that of nvec, (), found ().",
        ),
    ],
)
def test_refused(build, text):
    with pytest.raises(OptionError) as caught:
        build()
    assert str(caught.value) == text


def test_rand_is_uniform():
    assert chi_square(torch.bincount(Categorical(10).rand(10_000, generator=seeded()))) < 33.7
    assert chi_square(OneHot(10).rand(10_000, generator=seeded()).sum(0)) < 33.7
    columns = MultiCategorical([2, 10]).rand(10_000, generator=seeded())
    assert chi_square(torch.bincount(columns[:, 0])) < 15.2  # 1 degree of freedom, p = 1e-4
    assert chi_square(torch.bincount(columns[:, 1])) < 33.7  # 9
    pairs = torch.bincount(columns[:, 0] * 10 + columns[:, 1])
    assert chi_square(pairs) < 51  # 19: the columns are independent


def test_rand_repeats_with_a_generator():
    for spec in (Categorical(9), OneHot(9), MultiCategorical([9, 8]), MultiOneHot([9, 8])):
        assert torch.equal(spec.rand(20, generator=seeded(3)), spec.rand(20, generator=seeded(3)))
        assert not torch.equal(spec.rand(20, generator=seeded(3)), spec.rand(20, generator=seeded(4)))


@pytest.mark.parametrize("bits", range(1, 16))
def test_masked_rand_is_uniform_among_the_allowed(bits):
    mask = torch.tensor([bool(bits >> i & 1) for i in range(4)])
    counts = torch.bincount(Categorical(4).rand(4000, generator=seeded(bits), mask=mask), minlength=4)
    assert torch.equal(counts > 0, mask)
    assert chi_square(counts[mask]) < 21.2  # at most 3 degrees of freedom, p = 1e-4
    hot = OneHot(4, dtype=torch.int64).rand(4000, generator=seeded(bits), mask=mask)
    assert torch.equal(hot.sum(0), counts)


def test_masks_per_row():
    mask = torch.eye(3, dtype=torch.bool)
    assert Categorical(3).rand(3, mask=mask).tolist() == [0, 1, 2]
    assert Categorical(3, (3,)).rand(mask=mask).tolist() == [0, 1, 2]
    assert Categorical(3, (1,)).rand(3, mask=mask.unsqueeze(1)).tolist() == [[0], [1], [2]]
    assert OneHot(3, dtype=torch.int64).rand(3, mask=mask).tolist() == mask.long().tolist()
    assert OneHot(3, (3, 3)).rand(2, mask=mask).tolist() == [mask.tolist()] * 2
    assert Categorical(3).rand((2, 3), mask=mask).tolist() == [[0, 1, 2]] * 2


def test_masks_of_several_choices():
    mask = torch.tensor([[T, F, F, F, T], [F, T, F, T, F]])
    assert MultiCategorical([2, 3]).rand(2, mask=mask).tolist() == [[0, 2], [1, 1]]
    assert MultiOneHot([2, 3]).rand(2, mask=mask).tolist() == mask.tolist()
    assert MultiCategorical([2, 3], (2, 2)).rand(mask=mask).tolist() == [[0, 2], [1, 1]]
    square = MultiCategorical([[2, 1], [1, 3]])
    assert square.rand(mask=torch.tensor([F, T, T, T, F, F, T])).tolist() == [[1, 0], [0, 2]]


def test_masks_of_whole_numbers_and_other_layouts():
    assert Categorical(3).rand(mask=torch.tensor([0, 0, 1], dtype=torch.int8)).item() == 2
    assert Categorical(3).rand((0,), mask=torch.tensor([T, F, F])).shape == (0,)
    assert Categorical(2, dtype=torch.bool).rand(mask=torch.tensor([F, T])).item() is True


@pytest.mark.parametrize(
    ("spec", "batch", "mask", "text"),
    [
        (Categorical(3), (), torch.zeros(3, dtype=torch.bool), "found none: all of the mask is False there."),
        (OneHot(2), (2,), torch.tensor([[T, T], [F, F]]), "found none at index (1,): all"),
        (MultiOneHot([2, 2]), (2,), torch.tensor([[T, T, T, F], [T, F, F, F]]), "at index (1,) for choice 1: all"),
        (MultiCategorical([2, 2]), (), torch.tensor([F, F, T, T]), "found none for choice 0: all"),
        (Categorical(3), (), torch.ones(4, dtype=torch.bool), "expected shape (3,) or one that broadcasts"),
        (Categorical(3), (5,), torch.ones(4, 3, dtype=torch.bool), "expected shape (5, 3) or one that broadcasts"),
        (OneHot(3), (), torch.zeros(3), "expected dtype bool, found float32"),
    ],
)
def test_masks_refused(spec, batch, mask, text):
    with pytest.raises(SpecMismatch) as caught:
        spec.rand(batch, mask=mask)
    assert str(caught.value).startswith("action mask: expected ")
    assert text in str(caught.value)


def test_categorical_contains_exactly_its_indices():
    assert [Categorical(3).is_in(torch.tensor(i)) for i in (-1, 0, 1, 2, 3)] == [F, T, T, T, F]
    assert Categorical(3, dtype=torch.uint8).is_in(np.uint8(2))
    assert not Categorical(3).is_in(2)
    assert [Categorical(3, dtype=torch.float32).is_in(torch.tensor(v)) for v in (1.0, 1.5, float("nan"))] == [T, F, F]


def test_multi_categorical_contains_exactly_its_indices():
    spec = MultiCategorical([2, 3])
    inside = {(a, b) for a in range(-1, 3) for b in range(-1, 4) if spec.is_in(torch.tensor([a, b]))}
    assert inside == {(a, b) for a in range(2) for b in range(3)}


def test_one_hot_contains_exactly_the_unit_vectors():
    vectors = torch.cartesian_prod(*[torch.tensor([0, 1, 2])] * 3)
    inside = [v.tolist() for v in vectors if OneHot(3, dtype=torch.int64).is_in(v)]
    assert inside == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert not OneHot(2, dtype=torch.float32).is_in(torch.tensor([1.0, 0.5]))
    assert not OneHot(2, dtype=torch.int64).is_in(torch.tensor([2, -1]))
    bits = torch.cartesian_prod(*[torch.tensor([F, T])] * 5)
    assert sum(MultiOneHot([2, 3]).is_in(v) for v in bits) == 6


@pytest.mark.parametrize(
    ("spec", "value", "text"),
    [
        (
            OneHot(3, dtype=torch.int64),
            torch.tensor(1),
            (
                "expected shape (3,) and dtype int64, found shape () and dtype int64. "
                "It looks like an index, but a one-hot vector is expected: GymEnv(env, categorical_action_encoding=True) takes "
                "indices, of gymnasium's vector envs too; or encode it with torch.nn.functional.one_hot."
            ),
        ),
        (
            OneHot(3, (2, 3), dtype=torch.int64),
            torch.tensor([[1], [2]]),
            (
                "expected shape (2, 3) and dtype int64, found shape (2, 1) and dtype int64. "
                "It looks like an index, but a one-hot vector is expected: GymEnv(env, categorical_action_encoding=True) takes "
                "indices, of gymnasium's vector envs too; or encode it with torch.nn.functional.one_hot."
            ),
        ),
        (
            MultiOneHot([2, 3]),
            torch.tensor([1, 2]),
            (
                "expected shape (5,) and dtype bool, found shape (2,) and dtype int64. "
                "It looks like an index, but a one-hot vector is expected: GymEnv(env, categorical_action_encoding=True) takes "
                "indices, of gymnasium's vector envs too; or encode it with torch.nn.functional.one_hot."
            ),
        ),
        (
            Categorical(3),
            torch.tensor([0, 1, 0]),
            (
                "expected shape () and dtype int64, found shape (3,) and dtype int64. "
                "It looks like a one-hot vector, but an index is expected: build the env without "
                "categorical_action_encoding=True, "
                "or give indices (value.argmax(-1))."
            ),
        ),
        (
            OneHot(2),
            torch.tensor([0, 1]),
            "expected shape (2,) and dtype bool, found shape (2,) and dtype int64. Cast it: value.to(torch.bool).",
        ),
        (
            Categorical(3),
            torch.tensor([1]),
            (
                "expected shape () and dtype int64, found shape (1,) and dtype int64. "
                "It has as many elements: value.reshape(()) makes it fit."
            ),
        ),
        (Categorical(3), torch.tensor(3), "expected values in [0, 2], found 3."),
        (MultiCategorical([2, 3]), torch.tensor([2, 1]), "expected values in [0, 1], found 2 at index (0,)."),
        (OneHot(3), torch.tensor([T, T, F]), "expected exactly one 1 and else zeros, found [1, 1, 0]."),
        (
            OneHot(2, (2, 2)),
            torch.tensor([[T, F], [F, F]]),
            "expected exactly one 1 and else zeros, found [0, 0] at index (1,).",
        ),
        (
            MultiOneHot([1, 2]),
            torch.tensor([T, T, T]),
            "expected exactly one 1 and else zeros in each of the blocks (1, 2), found [1, 1].",
        ),
        (
            Categorical(3, (2,), dtype=torch.float32),
            torch.tensor([0.0, 1.5]),
            "expected whole numbers, found 1.5 at index (1,).",
        ),
    ],
)
def test_validate_says_what_is_wrong(spec, value, text):
    with pytest.raises(SpecMismatch) as caught:
        spec.validate(value, key="action", where="worker 2")
    assert str(caught.value) == f"worker 2: key action: {text}"


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        (Categorical(4), torch.tensor([7, -3, 2]), [3, 0, 2]),
        (Categorical(4), torch.tensor([2.6, float("inf"), float("nan")]), [3, 3, 0]),
        (MultiCategorical([2, 3]), torch.tensor([[7, -3], [-1, 7]]), [[1, 0], [0, 2]]),
        (OneHot(3, dtype=torch.int64), torch.tensor([0.2, 0.1, 0.7]), [0, 0, 1]),
        (OneHot(3, dtype=torch.int64), torch.tensor([[0, 0, 0], [0, 5, 5]]), [[1, 0, 0], [0, 1, 0]]),
        (OneHot(3, dtype=torch.int64), torch.tensor([F, T, F]), [0, 1, 0]),
        (MultiOneHot([2, 3], dtype=torch.int64), torch.tensor([0, 2, 0, 2, 1]), [0, 1, 0, 1, 0]),
    ],
)
def test_project(spec, value, expected):
    result = spec.project(value)
    assert result.tolist() == expected
    assert result.dtype == spec.dtype
    assert spec.is_in(result)


def test_expand():
    assert Categorical(4).expand(3) == Categorical(4, (3,))
    assert OneHot(4).expand(3, 4) == OneHot(4, (3, 4))
    assert OneHot(4).expand(3, -1) == OneHot(4, (3, 4))
    assert MultiOneHot([2, 3]).expand(3, 5) == MultiOneHot([2, 3], (3, 5))
    assert MultiCategorical([2, 3]).expand((3, 2)) == MultiCategorical([2, 3], (3, 2))


@pytest.mark.parametrize("spec", [OneHot(1), MultiOneHot([1]), MultiCategorical([1])])
def test_expand_keeps_the_choices(spec):
    with pytest.raises(OptionError, match=r"expected the last dimensions to stay \(1,\), found \(4,\)"):
        spec.expand(4)


SPECS = [
    Categorical(4),
    Categorical(4, (2,), dtype=torch.int32),
    OneHot(4),
    OneHot(4, (2, 4), dtype=torch.int64),
    MultiCategorical([2, 3]),
    MultiCategorical([[2, 3], [4, 5]]),
    MultiOneHot([2, 3]),
    MultiOneHot([2, 3], (4, 5)),
]


@pytest.mark.parametrize("spec", SPECS)
def test_copies_are_equal(spec):
    for twin in (pickle.loads(pickle.dumps(spec)), copy.copy(spec), copy.deepcopy(spec), spec.to("cpu")):
        assert twin == spec
        assert hash(twin) == hash(spec)
        assert repr(twin) == repr(spec)
        assert torch.equal(twin.rand(9, generator=seeded()), spec.rand(9, generator=seeded()))


def test_unequal():
    assert all((a == b) == (a is b) for a in SPECS for b in SPECS)
    assert len(set(SPECS)) == len(SPECS)
    assert MultiCategorical([2, 3]) != MultiCategorical([3, 2])
    assert OneHot(5) != MultiOneHot([5])


def test_to():
    assert Categorical(4).to(torch.int32) == Categorical(4, dtype=torch.int32)
    assert OneHot(4).to(torch.int64) == OneHot(4, dtype=torch.int64)
    assert MultiCategorical([2, 3]).to(torch.int8).dtype == torch.int8
    assert MultiOneHot([2, 3]).to("meta").device.type == "meta"


def test_repr():
    assert repr(Categorical(4)) == "Categorical(n=4, shape=(), dtype=int64)"
    assert repr(OneHot(4)) == "OneHot(n=4, shape=(4,), dtype=bool)"
    assert repr(MultiCategorical([[2], [3]])) == "MultiCategorical(nvec=[[2], [3]], shape=(2, 1), dtype=int64)"
    assert repr(MultiOneHot([2, 3])) == "MultiOneHot(nvec=[2, 3], shape=(5,), dtype=bool)"


def test_immutable():
    with pytest.raises(AttributeError, match=r"OneHot\.n cannot be set: specs are immutable"):
        OneHot(4).n = 5
