"""Where a policy runs: used as it is, copied to another device, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictModuleWrapper, WrapModule
from torch import Tensor, nn

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv
from reap.errors import OptionError
from reap.policy.contents.placement import place
from reap.specs import NonTensor
from reap.testing import Const, Count

CPU, META = torch.device("cpu"), torch.device("meta")
EAGER = {"backend": "eager"}


def put(policy: Any, device: torch.device | None) -> Any:
    return place(policy, device, compiled=False, as_graph=False)


class NoCopy(Const):
    """Refuses to be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("copied")


@pytest.mark.parametrize("device", [None, CPU])
def test_e09_no_copy_on_the_same_device(device: torch.device | None) -> None:
    policy = NoCopy(2.0)
    calls: list[tuple[Any, ...]] = []
    policy.register_forward_hook(lambda module, inputs, output: calls.append((module, output.tolist())))
    placed = put(policy, device)
    assert (placed.policy, placed.source, placed.called) == (policy, None, None)
    collector = SyncDataCollector(Count(9), policy, frames_per_batch=2, policy_device=device)
    assert collector.policy is policy
    collector.next()
    assert calls == [(policy, [2.0])] * 3, "hooks run in each call"


def test_a_hook_that_changes_the_output_holds() -> None:
    policy = Const(2.0)
    collector = SyncDataCollector(Count(9), policy, frames_per_batch=2)
    policy.register_forward_hook(lambda module, inputs, output: output + 1)
    assert collector.next()["action"].flatten().tolist() == [3, 3]


def test_a_copy_on_another_device() -> None:
    policy = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    placed = put(policy, META)
    assert placed.source is policy
    assert placed.policy is not policy
    assert {t.device for t in placed.policy.state_dict().values()} == {META}
    assert {t.device for t in policy.state_dict().values()} == {CPU}, "the caller's module is not moved"


def test_a_module_counts_as_elsewhere_if_any_tensor_is() -> None:
    policy = Const()
    policy.register_buffer("offset", torch.zeros(1, device="meta"))
    assert put(policy, META).source is policy
    assert put(Const().to("meta"), META).source is None
    assert put(nn.Tanh(), META).source is None, "a module without tensors is anywhere"


def test_inputs_are_brought_to_the_device() -> None:
    given: list[Any] = []
    called = put(given.append, META).called
    called(torch.zeros(2))
    called(TensorDict({"a": torch.zeros(2)}, [2]))
    assert (given[0].device, given[0].shape) == (META, (2,))
    assert given[1]["a"].device == META


def test_functions_are_used_as_they_are() -> None:
    placed = put(torch.neg, CPU)
    assert (placed.policy, placed.source, placed.called) == (torch.neg, None, None)


def test_a_cuda_graph_needs_cuda() -> None:
    for device in (None, "cpu"):
        with pytest.raises(OptionError) as caught:
            SyncDataCollector(Count(9), Const(), frames_per_batch=2, cudagraph_policy=True, policy_device=device)
        assert str(caught.value) == f"cudagraph_policy: expected policy_device to be a CUDA device, got {device}"


def test_false_and_no_arguments() -> None:
    assert put(Const(), None).called is None
    assert SyncDataCollector(Count(9), Const(), frames_per_batch=2, compile_policy=False).next().batch_size == (2,)


# ---------------------------------------------------------------------- compiled


def plain(policy: nn.Module) -> Any:
    return policy


def wrapped(policy: nn.Module) -> Any:
    return TensorDictModule(policy, in_keys=["observation"], out_keys=["action"])


@pytest.mark.processes
@pytest.mark.parametrize("form", [plain, wrapped])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_e11_a_compiled_policy_sees_weight_updates(form: Any) -> None:
    net = nn.Linear(1, 1)
    given = form(net)
    collector = SyncDataCollector(Count(9), given, frames_per_batch=3, compile_policy=EAGER)
    assert collector.policy is given
    with torch.no_grad():
        expected = net(torch.tensor([[0.0], [1.0], [2.0]]))
    torch.testing.assert_close(collector.next()["action"], expected)
    with torch.no_grad():
        net.weight.fill_(2.0)
        net.bias.fill_(1.0)
    assert collector.next()["action"].flatten().tolist() == [7, 9, 11]
    weights = {name: torch.zeros_like(value) for name, value in given.state_dict().items()}
    collector.update_policy_weights_(weights)
    assert collector.next()["action"].flatten().tolist() == [0, 0, 0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_function_keeps_its_arguments_names() -> None:
    def policy(observation: Tensor) -> Tensor:
        return observation * 2

    collector = SyncDataCollector(Count(9), policy, frames_per_batch=3, compile_policy=EAGER)
    assert collector.next()["action"].flatten().tolist() == [0, 2, 4]


def test_a_backend_that_does_not_exist() -> None:
    with pytest.raises(Exception, match="nonsense"):
        SyncDataCollector(Count(9), Const(), frames_per_batch=3, compile_policy={"backend": "nonsense"})


class AsksForDevice(TensorDictModuleBase):
    """Makes its action where its input says that it is."""

    def __init__(self) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["observation"], ["action"]
        self.seen: set[Any] = set()

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        self.seen.add((td.device, td.get("inner").device if "inner" in td.keys() else td.device))
        return td.set("action", torch.ones((*td.shape, 1), device=td.device))


@pytest.mark.parametrize(
    ("options", "device"),
    [
        ({}, None),
        ({"policy_device": "cpu"}, CPU),
        ({"device": "cpu"}, CPU),
        ({"env_device": "cpu", "storing_device": "cpu"}, None),
    ],
)
@pytest.mark.parametrize("kind", ["box", "dict", "objects"])
def test_a_policys_tensordict_gives_the_device_that_was_asked_for(kind: str, options: Any, device: Any) -> None:
    make: dict[str, Callable[[], Any]] = {
        "box": lambda: Count(9),
        "dict": lambda: Nested(9),
        "objects": lambda: GymEnv(Count(9), info_keys={"words": NonTensor(())}),
    }
    policy = AsksForDevice()
    with SyncDataCollector(make[kind](), policy, frames_per_batch=3, **options) as collector:
        batch = collector.next()
    assert policy.seen == {(device, device)}
    assert batch["action"].tolist() == [[1.0]] * 3


class Nested(Count):
    """`Count` that observes its count in a dict in a dict."""

    observation_space = spaces.Dict(inner=spaces.Dict(count=Count.observation_space))

    def observe(self) -> Any:
        return {"inner": {"count": super().observe()}}


def test_states_that_a_policy_shows_are_found_with_the_device() -> None:
    seen: set[Any] = set()

    def recurrent(td: TensorDictBase) -> TensorDictBase:
        seen.add(td.device)
        state = td.get("state", torch.zeros(*td.shape, 2, device=td.device))
        return td.set("action", torch.zeros(*td.shape, 1)).set(("next", "state"), state + 1)

    policy = TensorDictModuleWrapper(
        WrapModule(recurrent, in_keys=["observation", "state"], out_keys=["action", ("next", "state")])
    )
    with SyncDataCollector(Count(9), policy, frames_per_batch=3, policy_device="cpu") as collector:
        assert collector.next()["next", "state"].tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert seen == {CPU}
