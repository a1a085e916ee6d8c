"""The call of a policy at construction: what it finds wrong, and that it leaves nothing behind."""

from __future__ import annotations

import re
from itertools import chain, count, repeat
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import SpecMismatch
from reap.testing import BN, Const, Count, DictCount, DiscreteCount, Id


def probe(policy: Any, env: Any = None, **options: Any) -> SyncDataCollector:
    return SyncDataCollector(env or Count(9), policy, frames_per_batch=4, **options)


def message(policy: Any, env: Any = None, **options: Any) -> str:
    with pytest.raises(SpecMismatch) as caught:
        probe(policy, env, **options)
    return unnested(str(caught.value))


def unnested(text: str) -> str:
    """The text with functions named as if they were defined outside of the test."""
    return re.sub(r"\w+\.<locals>\.", "", text)


# ---------------------------------------------------------------------- wrong outputs

ON_META = (
    "expected a dense tensor with values, found one on device meta; make it where it has values: torch.zeros(..., device='cpu')"
)
FLOAT = "expected shape (1,) and dtype float32, found"
CASTS = "GymEnv(dtype=torch.float32) casts an env's float observations."
CAST = "Cast it: value.to(torch.float32)"


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (lambda observation: {"act": observation}, "expected the action under ['action'], found outputs ['act']"),
        (lambda observation: {}, "expected the action under ['action'], found outputs []"),
        (lambda observation: observation.new_zeros(2), f"key action: {FLOAT} shape (2,) and dtype float32."),
        (
            lambda observation: observation.squeeze(),
            f"key action: {FLOAT} shape () and dtype float32. It has as many elements: value.reshape((1,)) makes it fit.",
        ),
        (
            lambda observation: observation.numpy().astype(np.float64),
            f"key action: {FLOAT} shape (1,) and dtype float64. {CAST}; {CASTS}",
        ),
        (
            lambda observation: observation.to("meta"),
            "output 'action': " + ON_META,
        ),
        (
            lambda observation: {"action": observation, "value": observation.to("meta")},
            "output 'value': " + ON_META,
        ),
        (lambda observation: observation / 0, "'action': expected numbers, found NaN in the first action"),
        (lambda observation: None, "output 'action': expected a tensor, found NoneType"),
        (lambda observation: "left", "output 'action': expected a tensor, found str"),
        (lambda observation: object(), "output 'action': expected a tensor, found object"),
        (
            lambda observation: {"action": observation, "value": {"a": None}},
            "output ('value', 'a'): expected a tensor, found NoneType",
        ),
    ],
)
def test_wrong_outputs(policy: Any, text: str) -> None:
    assert message(policy) == f"policy <lambda>: {text}"


@pytest.mark.parametrize("values", [torch.tensor([3]), torch.tensor([1], dtype=torch.int8), torch.tensor([True])])
def test_whole_numbers_fit_a_float_action(values: torch.Tensor) -> None:
    """Floats are stored; and floats may follow, but no whole numbers where the first call gave floats."""
    half = torch.tensor([0.5])
    numbers = chain([values] * 4, repeat(half))
    with probe(lambda observation: next(numbers)) as collector:
        actions = [collector.next()["action"] for _ in range(2)]
    assert [one.dtype for one in actions] == [torch.float32] * 2
    assert actions[0].flatten().tolist()[:3] == [float(values)] * 3
    assert actions[1].flatten().tolist() == [0.5] * 4
    numbers = chain([half], repeat(values))
    with probe(lambda observation: next(numbers)) as collector, pytest.raises(SpecMismatch, match="as in its first call"):
        collector.next()


def test_outputs_without_the_batch_dimensions() -> None:
    env = SerialEnv(2, lambda: Count(9))
    text = message(lambda observation: {"action": observation, "value": observation.sum()}, env)
    rows = "The policy is called once for all rows: its outputs begin with (2,)."
    assert text == (
        f"policy <lambda>: output 'value': expected a shape that starts with the env's batch size (2,), found (). {rows}"
    )
    text = message(lambda observation: observation[0], env)
    assert text == (
        f"policy <lambda>: key action: expected shape (2, 1) and dtype float32, found shape (1,) and dtype float32. {rows}"
    )


INDEX = (
    "It looks like an index, but a one-hot vector is expected: GymEnv(env, categorical_action_encoding=True) takes "
    "indices, of gymnasium's vector envs too; or encode it with torch.nn.functional.one_hot."
)


def test_an_index_where_one_hot_is_expected() -> None:
    assert message(lambda x: torch.tensor(1), GymEnv(DiscreteCount(9))) == (
        f"policy <lambda>: key action: expected shape (5,) and dtype int64, found shape () and dtype int64. {INDEX}"
    )
    env = SerialEnv(3, lambda: DiscreteCount(9))
    assert message(lambda x: torch.tensor([1, 2, 3]), env).endswith(f"found shape (3,) and dtype int64. {INDEX}")


def test_one_hot_where_an_index_is_expected() -> None:
    env = GymEnv(DiscreteCount(9), categorical_action_encoding=True)
    assert message(lambda x: torch.tensor([0, 1, 0, 0, 0]), env) == (
        "policy <lambda>: key action: expected shape () and dtype int64, found shape (5,) and dtype int64. It looks like a "
        "one-hot vector, but an index is expected: build the env without categorical_action_encoding=True, or give indices "
        "(value.argmax(-1))."
    )


def test_choices_that_are_none() -> None:
    assert message(lambda x: torch.tensor([0, 1, 1, 0, 0]), GymEnv(DiscreteCount(9))) == (
        "policy <lambda>: key action: expected exactly one 1 and else zeros, found [0, 1, 1, 0, 0]."
    )
    env = GymEnv(DiscreteCount(9), categorical_action_encoding=True)
    assert message(lambda x: torch.tensor(5), env) == "policy <lambda>: key action: expected values in [0, 4], found 5."


def test_bounds_of_continuous_actions_are_the_envs_own_affair() -> None:
    assert probe(lambda observation: torch.full((1,), 1e9)).next()["action"].flatten().tolist() == [1e9] * 4


def test_a_tensordict_policy_that_returns_something_else() -> None:
    def policy(tensordict: Any) -> int:
        return 3

    assert message(policy) == "policy policy: expected it to return a TensorDict, or None, found int"


# ---------------------------------------------------------------------- wrong inputs


class Doubles(Count):
    observation_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float64)

    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class Through(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, observation: Tensor) -> Tensor:
        return self.layer(observation)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (nn.Linear(1, 1), "Linear"),
        (nn.Sequential(nn.Linear(1, 1), nn.Tanh()), "Sequential"),
        (Through(nn.Linear(1, 1)), "Through"),
        (TensorDictModule(nn.Linear(1, 1), in_keys=["observation"], out_keys=["action"]), "TensorDictModule"),
        (lambda observation: nn.functional.linear(observation, torch.ones(1, 1)), "<lambda>"),
    ],
)
def test_h07_float64_into_a_float32_layer_suggests_the_envs_dtype(policy: Any, name: str) -> None:
    text = message(policy, Doubles(9))
    assert text.startswith(f"policy {name}: expected inputs of dtype float32, found 'observation' of dtype float64 (")
    assert text.endswith("); build the env with GymEnv(..., dtype=torch.float32)")
    batch = probe(policy, GymEnv(Doubles(9), dtype=torch.float32)).next()
    assert batch["observation"].dtype == torch.float32


def test_whole_numbers_into_a_float_layer() -> None:
    text = message(nn.Linear(5, 1), GymEnv(DiscreteCount(9)))
    assert text.startswith("policy Linear: expected inputs of dtype float32, found 'observation' of dtype int64 (")
    assert text.endswith("); convert in the policy: .to(torch.float32)")


def test_a_dtype_that_fits_is_no_mismatch() -> None:
    assert probe(Mixed(), Doubles(9)).next().batch_size == (4,)


class Mixed(nn.Module):
    """A layer of float64, whose result is cast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1).double()

    def forward(self, observation: Tensor) -> Tensor:
        return self.layer(observation).float()


@pytest.mark.parametrize(
    ("policy", "error", "note"),
    [
        (nn.Linear(3, 1), RuntimeError, "policy Linear, with 'observation' of shape (1,) and dtype float32"),
        (lambda x: 1 // 0, ZeroDivisionError, "policy <lambda>, with 'observation' of shape (1,) and dtype float32"),
        (
            TensorDictModule(nn.Linear(1, 1), in_keys=["state"], out_keys=["action"]),
            KeyError,
            "policy TensorDictModule, with 'observation' of shape (1,) and dtype float32",
        ),
    ],
)
def test_an_error_of_the_first_call_says_what_it_was_called_with(policy: Any, error: type, note: str) -> None:
    with pytest.raises(error) as caught:
        probe(policy)
    assert caught.value.__notes__ == [f"reap: raised by the first call of {note}"]


def test_the_note_names_what_the_policy_reads() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        probe(lambda level, place: 1 // 0, DictCount(9))
    given = "('agent', 'level') of shape (4,) and dtype int64, 'place' of shape (2,) and dtype float64"
    (note,) = caught.value.__notes__
    assert unnested(note) == f"reap: raised by the first call of policy <lambda>, with {given}"


# ---------------------------------------------------------------------- nothing left behind


class Calls(Const):
    """Counts its calls, and keeps copies of what they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[float]] = []

    def forward(self, observation: Tensor) -> Tensor:
        self.seen.append(observation.flatten().tolist())
        return super().forward(observation)


def test_one_call_with_the_observation_of_column_0() -> None:
    policy = Calls()
    env = GymEnv(Id(3))
    collector = probe(policy, env)
    assert policy.seen == [[3, 0, 0]]
    batch = collector.next()
    assert policy.seen[1] == batch["observation"][0].tolist() == [3, 0, 0]
    assert env.wrapped.resets == 1
    assert len(policy.seen) == 5


def test_two_calls_where_modules_are_unwrapped() -> None:
    policy = Calls()
    collector = probe(TensorDictModule(policy, in_keys=["observation"], out_keys=["action"]))
    assert "(unwrapped)" in repr(collector)
    assert policy.seen == [[0], [0]]


def test_random_states_are_as_before() -> None:
    torch.manual_seed(4)
    expected = torch.rand(5)
    torch.manual_seed(4)
    collector = probe(lambda observation: torch.rand(1))
    assert torch.equal(collector.next()["action"].flatten(), expected[:4])
    assert torch.equal(torch.rand(1), expected[4:])


def test_buffers_of_batch_norm_are_as_before() -> None:
    policy = BN(3).train()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    env = SerialEnv(4, [lambda i=i: Id(i) for i in range(4)])
    collector = probe(policy, env)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    collector.next()
    assert policy.norm.num_batches_tracked.item() == 1, "once per column, and not for the probe"


def test_parameters_that_a_call_changes_are_as_before() -> None:
    class Drift(Const):
        def forward(self, observation: Tensor) -> Tensor:
            self.w.add_(1)
            return super().forward(observation).clone()

    policy = Drift()
    collector = probe(policy)
    assert policy.w.tolist() == [0.0]
    assert collector.next()["action"].flatten().tolist() == [1, 2, 3, 4]


def test_the_stage_is_as_before_when_a_policy_writes_into_its_input() -> None:
    def policy(observation: Tensor) -> Tensor:
        return observation.add_(5).clone()

    assert probe(policy).next()["observation"].flatten().tolist() == [0, 1, 2, 3]


def test_nothing_is_restored_that_needs_no_restoring_after_an_error() -> None:
    class Broken(Const):
        def forward(self, observation: Tensor) -> Tensor:
            self.w.fill_(9)
            torch.rand(1)
            raise ValueError("broken")

    policy = Broken()
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="broken"):
        probe(policy)
    assert policy.w.tolist() == [0.0]
    assert torch.equal(torch.get_rng_state(), state)


def test_lazy_layers_are_materialised() -> None:
    policy = nn.LazyLinear(1)
    probe(policy, GymEnv(Id(0)))
    assert policy.weight.shape == (1, 3)
    assert not policy.weight.is_inference()
    assert policy.weight.requires_grad


def test_lazy_layers_of_an_unwrapped_policy() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(1))
    collector = probe(TensorDictModule(net, in_keys=["observation"], out_keys=["action"]))
    assert "(unwrapped)" in repr(collector)
    assert net[2].weight.shape == (1, 4)
    assert torch.equal(collector.next()["action"][0], net(torch.zeros(1)).detach())


# ---------------------------------------------------------------------- scores where a choice is expected


@pytest.mark.parametrize(
    ("encoding", "advice"), [(False, r"give one_hot\(value.argmax\(-1\), 2\)"), (True, r"give value.argmax\(-1\)")]
)
def test_logits_are_not_an_action(encoding: bool, advice: str) -> None:
    with pytest.raises(
        SpecMismatch, match=f"expected a choice of 2, .* found shape .* If these are logits or scores, {advice}"
    ):
        SyncDataCollector(
            "CartPole-v1",
            nn.Linear(4, 2),
            frames_per_batch=4,
            create_env_kwargs={"categorical_action_encoding": encoding},
        )


def test_an_exact_one_hot_of_floats_is_a_choice() -> None:
    with SyncDataCollector("CartPole-v1", lambda observation: torch.tensor([1.0, 0.0]), frames_per_batch=4) as collector:
        batch = collector.next()
    assert batch["action"].dtype == torch.int64
    assert batch["action"].tolist() == [[1, 0]] * 4


def test_an_expanded_buffer_is_as_before() -> None:
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)
            self.register_buffer("repeated", torch.tensor([[2.0]]).expand(3, 4))

        def forward(self, observation: Tensor) -> Tensor:
            return self.linear(observation)

    policy = Expanded()
    probe(policy, Count(9)).next()
    assert (policy.repeated == 2.0).all()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_module_goes_on_after_the_first_rollout() -> None:
    policy = nn.Sequential(nn.Linear(1, 1))
    with probe(torch.jit.script(policy)) as scripted, probe(policy) as plain:
        for _ in range(3):
            assert torch.equal(scripted.next()["action"], plain.next()["action"])


# ---------------------------------------------------------------------- dtypes of choices


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_indices_come_in_any_dtype_of_whole_numbers(dtype: torch.dtype) -> None:
    calls = count()
    env = GymEnv(DiscreteCount(9), categorical_action_encoding=True)
    with SyncDataCollector(env, lambda x: torch.tensor(next(calls) % 5, dtype=dtype), frames_per_batch=5) as collector:
        action = collector.next()["action"]
    assert action.dtype == torch.int64
    assert sorted(action.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "found shape () and dtype float32"), (1.5, "expected a choice of 5, dtype torch.int64")]
)
def test_an_index_is_no_float(value: float, text: str) -> None:
    env = GymEnv(DiscreteCount(9), categorical_action_encoding=True)
    assert text in message(lambda x: torch.tensor(value), env)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int8, torch.float32])
def test_one_hot_comes_in_any_dtype(dtype: torch.dtype) -> None:
    row = torch.tensor([0, 0, 1, 0, 0]).to(dtype)
    with SyncDataCollector(GymEnv(DiscreteCount(9)), lambda x: row, frames_per_batch=3) as collector:
        action = collector.next()["action"]
    assert action.dtype == torch.int64
    assert action.tolist() == [[0, 0, 1, 0, 0]] * 3
