"""Weight updaters: where weights come from, how they go, and that a wrong one changes nothing."""

from __future__ import annotations

import gc
import math
import re
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from reap.collectors import SyncDataCollector, VanillaWeightUpdater, WeightUpdaterBase
from reap.errors import OptionError, SpecMismatch
from reap.testing import BN, Const, Count
from reap.weights.base import load_weights
from reap.weights.weight_layout import describe


class Net(nn.Module):
    """Two layers and a buffer."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
        self.register_buffer("count", torch.tensor(0.0))
        self.fill(value)

    def fill(self, value: float) -> None:
        with torch.no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                tensor.fill_(value)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.body(observation)


def values(net: nn.Module) -> list[float]:
    return sorted({value for tensor in (*net.parameters(), *net.buffers()) for value in tensor.flatten().tolist()})


FORMS = {
    "module": lambda net: net,
    "TensorDict.from_module": TensorDict.from_module,
    "TensorDict of data": lambda net: TensorDict.from_module(net).data,
    "flat TensorDict": lambda net: TensorDict(dict(net.state_dict())),
    "state dict": lambda net: net.state_dict(),
    "dict": lambda net: dict(net.state_dict()),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_weights(form: str) -> None:
    policy = Net(1.0)
    places = [tensor.data_ptr() for tensor in policy.parameters()]
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
    collector.update_policy_weights_(FORMS[form](Net(2.0)))
    assert values(policy) == [2.0]
    assert [tensor.data_ptr() for tensor in policy.parameters()] == places, "they are written in place"
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_nothing_given_leaves_the_policy_as_it_is() -> None:
    policy = Net(1.0)
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
    collector.update_policy_weights_()
    collector.update_policy_weights_(policy)
    collector.update_policy_weights_(None, worker_ids=0)
    assert values(policy) == [1.0]
    assert collector.policy_version == 3


def test_buffers_may_be_left_out_and_parameters_not() -> None:
    policy = Net(1.0)
    load_weights(policy, {name: p + 1 for name, p in policy.named_parameters()})
    assert (policy.count.item(), values(policy)) == (1.0, [1.0, 2.0])
    with pytest.raises(SpecMismatch):
        load_weights(policy, {"count": torch.tensor(3.0)})


WRONG = {
    "missing": (
        lambda weights: weights.pop("body.1.bias"),
        "weights: expected the names of the policy; missing ['body.1.bias'], unknown []",
    ),
    "unknown": (
        lambda weights: weights.update(head=torch.zeros(1)),
        "weights: expected the names of the policy; missing [], unknown ['head']",
    ),
    "shape": (
        lambda weights: weights.update({"body.1.bias": torch.zeros(3)}),
        "weights: body.1.bias: expected shape (1,), found (3,)",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_names_and_shapes_change_nothing(wrong: str) -> None:
    policy = Net(1.0)
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
    weights = OrderedDict(Net(2.0).state_dict())
    change, message = WRONG[wrong]
    change(weights)
    with pytest.raises(SpecMismatch) as caught:
        collector.update_policy_weights_(weights)
    assert str(caught.value) == message
    assert values(policy) == [1.0]
    assert collector.policy_version == 0


@pytest.mark.parametrize(
    ("dtype", "given", "found"),
    [
        (torch.float16, [1.0, 1e6], "1000000.0 (torch.float32)"),
        (torch.float32, [2 + 1j, 1.0], "(2+1j) (torch.complex64)"),
        (torch.int64, [1.0, 2.5], "2.5 (torch.float32)"),
        (torch.int64, [float("nan"), 2.0], "nan (torch.float32)"),
        (torch.uint8, [1, 256], "256 (torch.int64)"),
        (torch.bool, [1, 2], "2 (torch.int64)"),
    ],
)
def test_numbers_that_a_dtype_cannot_hold(dtype: torch.dtype, given: list[Any], found: str) -> None:
    target = {"weight": torch.zeros(2, dtype=dtype)}
    with pytest.raises(SpecMismatch) as caught:
        load_weights(target, {"weight": torch.tensor(given)})
    assert str(caught.value) == f"weights: weight: expected numbers that {dtype} can hold, found {found}"
    assert target["weight"].tolist() == [0, 0]


def test_shapes_are_compared_without_numbers() -> None:
    described = describe({"weight": torch.zeros(2, dtype=torch.float16)})
    given = {"weight": torch.empty(2, device="meta")}
    assert described.select(given) == given


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (torch.float16, [0.1, float("inf")]),
        (torch.float32, torch.tensor([2.0, 1.0], dtype=torch.float64)),
        (torch.complex64, [1.5, 2.0]),
        (torch.int64, [1.0, 7.0]),
        (torch.float32, [True, False]),
    ],
)
@pytest.mark.filterwarnings("error")
def test_numbers_that_another_dtype_can_hold(dtype: torch.dtype, given: Any) -> None:
    target, value = {"weight": torch.zeros(2, dtype=dtype)}, torch.as_tensor(given)
    load_weights(target, {"weight": value})
    assert target["weight"].tolist() == value.to(dtype).tolist()


class Tied(nn.Module):
    """Two layers that share their weight: the output is 0."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.body, self.head = (nn.Linear(1, 1, bias=False) for _ in range(2))
        nn.init.constant_(self.body.weight, value)
        self.head.weight = self.body.weight

    def forward(self, observation: Tensor) -> Tensor:
        return self.body(observation) - self.head(observation)


def untied(first: float, second: float) -> Any:
    return {"body.weight": torch.full((1, 1), first), "head.weight": torch.full((1, 1), second)}


def with_weights(weights: Any) -> Tied:
    policy = Tied(0.0)
    policy.load_state_dict(weights, assign=True)
    return policy


@pytest.mark.parametrize("form", [lambda weights: weights, with_weights, TensorDict])
def test_names_of_one_weight_with_different_values(form: Callable[[Any], Any]) -> None:
    policy = Tied(1.0)
    with pytest.raises(SpecMismatch) as caught:
        load_weights(policy, form(untied(2.0, 3.0)))
    assert re.fullmatch(
        r"weights: (body|head)\.weight: expected the values of the other names that this weight has in the policy that acts, "
        r"found others; share the parameter here too, or build a new collector",
        str(caught.value),
    )
    assert values(policy) == [1.0]
    load_weights(policy, form(untied(4.0, 4.0)))
    assert values(policy) == [4.0]
    load_weights(policy, form(untied(float("nan"), float("nan"))))
    assert math.isnan(values(policy)[0])
    load_weights(policy, {"head.weight": torch.full((1, 1), 5.0)})  # one of them is enough
    assert values(policy) == [5.0]
    load_weights(policy, Tied(6.0).state_dict())
    assert values(policy) == [6.0]


@pytest.mark.parametrize("given", [3, "weights", [torch.zeros(1)]])
def test_no_weights(given: Any) -> None:
    with pytest.raises(OptionError) as caught:
        SyncDataCollector(Count(5), Net(1.0), frames_per_batch=2).update_policy_weights_(given)
    assert str(caught.value) == f"weights: expected a module, a TensorDict or a state dict, got {type(given).__name__}"


@pytest.mark.parametrize(("given", "unknown"), [(1, [1]), ([0, 5], [5]), (-1, [-1])])
def test_workers_that_are_not_there(given: Any, unknown: list[int]) -> None:
    policy = Net(1.0)
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
    with pytest.raises(OptionError) as caught:
        collector.update_policy_weights_(Net(2.0), worker_ids=given)
    assert str(caught.value) == f"worker_ids: expected some of [0], got {unknown}"
    assert values(policy) == [1.0]


def test_buffers_travel_too() -> None:
    policy, other = BN(1), BN(1)
    other.norm.running_mean.fill_(3.0)
    VanillaWeightUpdater(policy).push_weights(other)
    assert policy.norm.running_mean.tolist() == [3.0]


# ---------------------------------------------------------------------- updaters of one's own


class Doubling(WeightUpdaterBase):
    """Sends twice the weights, to the workers `ids`; keeps a log."""

    ids = (0,)

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []

    def _get_server_weights(self) -> Any:
        self.log.append("get")
        return {"w": torch.tensor([5.0])}

    def _maybe_map_weights(self, server_weights: Any) -> Any:
        self.log.append("map")
        return {name: 2 * value for name, value in server_weights.items()}

    def _sync_weights_with_worker(self, *, worker_id: Any, server_weights: Any) -> None:
        self.log.append((worker_id, server_weights["w"].item()))
        load_weights(self.collector.policy, server_weights)

    def all_worker_ids(self) -> Any:
        return self.ids


@pytest.mark.parametrize("give", [Doubling, partial(Doubling)])
def test_an_updater_or_a_constructor_of_one(give: Any) -> None:
    for given in (give, give()):
        collector = SyncDataCollector(Count(5), Const(1.0), frames_per_batch=2, weight_updater=given)
        updater = collector.weight_updater
        assert isinstance(updater, Doubling)
        assert updater.collector is collector
        assert updater.log == [], "nothing is sent at construction"
        collector.update_policy_weights_()
        assert updater.log == ["get", "map", (0, 10.0)]
        assert collector.next()["action"].flatten().tolist() == [10, 10]
        collector.update_policy_weights_({"w": torch.tensor([1.5])})
        assert updater.log[3:] == ["map", (0, 3.0)]
        assert collector.policy.w.tolist() == [3.0]


def test_the_default_updater() -> None:
    policy = Const()
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
    assert isinstance(collector.weight_updater, VanillaWeightUpdater)
    assert collector.weight_updater.collector is collector
    assert SyncDataCollector(Count(5), frames_per_batch=2).weight_updater is None
    assert SyncDataCollector(Count(5), torch.neg, frames_per_batch=2).weight_updater is None


def test_worker_ids_are_handed_over_one_by_one() -> None:
    updater = Doubling()
    updater.ids = (0, 1, 2)
    collector = SyncDataCollector(Count(5), Const(), frames_per_batch=2, weight_updater=updater)
    weights = {"w": torch.tensor([1.0])}
    for given, expected in ((None, [0, 1, 2]), (1, [1]), ([2, 0], [2, 0]), ((1,), [1]), (range(2), [0, 1]), ([], [])):
        updater.log.clear()
        collector.update_policy_weights_(weights, worker_ids=given)
        assert updater.log == ["map", *((worker, 2.0) for worker in expected)]


def test_post_hooks_run_after_each_push_in_their_order() -> None:
    updater = Doubling()
    collector = SyncDataCollector(Count(5), Const(), frames_per_batch=2, weight_updater=updater)
    updater.register_post_hook(lambda: updater.log.append("first"))
    updater.register_post_hook(lambda: updater.log.append("second"))
    collector.update_policy_weights_()
    assert updater.log == ["get", "map", (0, 10.0), "first", "second"]


def test_hooks_do_not_run_when_a_push_fails() -> None:
    updater = VanillaWeightUpdater(Const())
    updater.register_post_hook(lambda: pytest.fail("the push has failed"))
    with pytest.raises(SpecMismatch):
        updater.push_weights({"v": torch.zeros(1)})


def test_an_updater_does_not_keep_its_collector() -> None:
    updater = Doubling()
    collector = SyncDataCollector(Count(5), Const(), frames_per_batch=2, weight_updater=updater)
    assert updater.collector is collector
    del collector
    gc.collect()
    assert updater.collector is None


def test_from_policy() -> None:
    policy = Const(1.0)
    updater = VanillaWeightUpdater.from_policy(policy)
    assert isinstance(updater, VanillaWeightUpdater)
    updater.push_weights(Const(4.0))
    assert policy.w.tolist() == [4.0]
    assert Doubling.from_policy(policy) is None
    assert updater.collector is None
    assert updater.all_worker_ids() == [0]


def test_a_copy_is_updated_from_its_source() -> None:
    source, copy = Net(2.0), Net(1.0)
    updater = VanillaWeightUpdater(copy, source)
    assert values(copy) == [1.0]
    updater.push_weights()
    assert values(copy) == [2.0]
    source.fill(3.0)
    assert values(copy) == [2.0]
    updater.push_weights()
    assert values(copy) == [3.0]


def test_weights_in_place_from_a_getter() -> None:
    policy = Net(1.0)
    updater = VanillaWeightUpdater(weight_getter=lambda: Net(2.0), policy_weights=TensorDict.from_module(policy).data.lock_())
    updater.push_weights()
    assert values(policy) == [2.0]
    updater.push_weights(Net(3.0))
    assert values(policy) == [3.0]
    VanillaWeightUpdater(policy_weights=dict(policy.state_dict())).push_weights(Net(4.0).state_dict())
    assert values(policy) == [4.0]
    VanillaWeightUpdater(policy_weights=TensorDict.from_module(policy)).push_weights()
    assert values(policy) == [4.0]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"policy": Net(1.0), "policy_weights": {}}, "policy and policy_weights"),
        ({"policy": Net(1.0), "source": Net(1.0), "weight_getter": list}, "source and weight_getter"),
    ],
)
def test_options_of_which_one_is_enough(given: dict[str, Any], names: str) -> None:
    with pytest.raises(OptionError, match=f"expected one of {names}, got both"):
        VanillaWeightUpdater(**given)


def test_a_base_without_its_method_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        WeightUpdaterBase()  # pyright: ignore[reportAbstractUsage]


class Plain(WeightUpdaterBase):
    """An updater as programs for torchrl write one: no `super().__init__()`, workers without ids, every other push."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def all_worker_ids(self) -> list[int] | None:
        return None

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        self.log.append((worker_id, server_weights))

    def _skip_update(self, worker_id: Any) -> bool:
        return len(self.log) % 2 == 1


def test_a_subclass_that_calls_no_constructor() -> None:
    updater = Plain([])
    assert (updater.collector, updater.collectors, updater.post_hooks) == (None, [], [])
    updater.push_weights()
    hook = partial(updater.log.append, "hook")
    updater.register_post_hook(hook)
    updater({"w": 1})
    assert updater.log == [(None, None), "hook"]
    assert (updater.post_hooks, Plain([]).post_hooks) == ([hook], [])
    with pytest.raises(OptionError, match="expected some of"):
        updater.push_weights(worker_ids=3)


@pytest.mark.parametrize("given", [{}, {"weight_updater": Plain([])}])
def test_an_updater_counts_versions(given: dict[str, Any]) -> None:
    collector = SyncDataCollector(Count(5), Const(), frames_per_batch=2, **given)
    updater: Any = collector.weight_updater
    assert updater.collectors == [collector]
    before = collector.get_policy_version()
    updater.increment_version()
    assert collector.get_policy_version() == before + 1
