"""Policies of TensorDict modules, called by their parts: the same bits, or the TensorDict path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict.nn import (
    InteractionType,
    TensorDictModule,
    TensorDictSequential,
)
from tensordict.nn import ProbabilisticTensorDictModule as Prob
from tensordict.nn import ProbabilisticTensorDictSequential as ProbSequential
from torch import Tensor, nn
from torch import distributions as d
from torchrl.modules import (
    OneHotCategorical,
)

from reap.errors import SpecMismatch
from reap.keys import Key
from reap.policy.actors.unwrapped import UnwrappedActor
from reap.recording.layout import Field
from tests.policy.policies import actor, doubled, mod, net, prob
from tests.policy.recording import COLUMNS, OBSERVATION, Recording, check, check_rollout, inputs_of

Policy = Callable[[], Any]


# Keys

NESTED: dict[Key, Field] = {
    ("agents", "position"): Field((4,), torch.float32),
    ("agents", "camera"): Field((2, 2), torch.float32),
    ("goal",): Field((4,), torch.float64),
}


def test_nested_keys() -> None:
    policy = TensorDictSequential(
        TensorDictModule(
            lambda p, c, g: (p + g.float(), c.sum((-1, -2))),
            in_keys=[("agents", "position"), ("agents", "camera"), "goal"],
            out_keys=[("agents", "plan"), ("extra", "deep", "sum")],
        ),
        TensorDictModule(net(), in_keys=[("agents", "plan")], out_keys=["action"]),
    )
    recording = check(policy, "unwrapped", fields=NESTED)
    assert set(recording.actor.reads) == set(NESTED)


def test_is_init() -> None:
    policy = TensorDictModule(lambda x, first: x + first, ["observation", "is_init"], ["action"])
    recording = check(policy, "unwrapped")
    assert ("is_init",) in recording.stage.fields


def test_outputs_of_the_next_step() -> None:
    fields = {**OBSERVATION, ("hidden",): Field((8,), torch.float32)}
    policy = TensorDictSequential(
        TensorDictModule(nn.GRUCell(4, 8), ["observation", "hidden"], [("next", "hidden")]),
        TensorDictModule(nn.Linear(8, 2), [("next", "hidden")], ["action"]),
    )
    recording = check(policy, "unwrapped", fields=fields)
    assert list(recording.actor.outputs) == [("next", "hidden"), ("action",)]


def test_an_input_that_is_written_again_is_no_output() -> None:
    policy = TensorDictSequential(TensorDictModule(lambda x: x / 255, ["observation"], ["observation"]), mod())
    recording = check(policy, "unwrapped")
    assert list(recording.actor.outputs) == [("action",)]


def test_dtypes() -> None:
    policy = TensorDictModule(
        lambda x: (x.double(), x > 0, x.bfloat16(), x.argmax(-1)), ["observation"], ["action", "b", "half", "index"]
    )
    check(policy, "unwrapped")


# The trial


def test_the_trial_leaves_no_trace() -> None:
    policy = ProbSequential(
        TensorDictModule(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), net()), ["observation"], ["logits"]), prob()
    )
    before = deepcopy(policy.state_dict())
    torch.manual_seed(1)
    state = torch.get_rng_state()
    recording = Recording(policy)  # seeds with 1 too
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())
    assert recording.actor.kind == "unwrapped"
    check_rollout(recording, deepcopy(policy))


def test_an_input_changed_in_place() -> None:
    policy = TensorDictModule(lambda x: x.mul_(2)[..., :2].clone(), ["observation"], ["action"])
    recording = check(policy, "unwrapped")
    first = Recording(policy)
    assert torch.equal(first.stage.tensors["observation",], inputs_of(first.stage, 0)["observation",])
    assert recording.kept is not None


def test_lazy_layers() -> None:
    policy = TensorDictSequential(TensorDictModule(nn.LazyLinear(2), ["observation"], ["logits"]), prob())
    recording = Recording(policy)
    assert recording.actor.kind == "unwrapped"
    check_rollout(recording, policy)


class Remembering(nn.Module):
    """Its output depends on how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, observation: Tensor) -> Tensor:
        self.calls += 1
        return observation[..., :2] + self.calls


def test_a_policy_that_differs_from_call_to_call_is_not_unwrapped() -> None:
    module = Remembering()
    recording = Recording(TensorDictModule(module, ["observation"], ["action"]))
    assert module.calls == 2
    assert recording.actor.kind == "tensordict"


class Keeping(nn.Module):
    """Compares its input with the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, observation: Tensor) -> Tensor:
        last, self.last = self.last, observation
        return observation[..., :2] - (0 if last is None else last[..., :2])


def test_a_policy_that_keeps_its_input_is_given_copies() -> None:
    module = Keeping()
    recording = Recording(ProbSequential(TensorDictModule(module, ["observation"], ["logits"]), prob()))
    assert recording.kept is None
    found = recording.rollout()["logits",]
    inputs = torch.stack([inputs_of(recording.stage, t)["observation",][..., :2] for t in range(COLUMNS)], 1)
    assert torch.equal(found[:, 1:], inputs[:, 1:] - inputs[:, :-1])


def test_inputs_kept_later_are_found() -> None:
    kept: list[Tensor] = []
    is_keeping = False

    def policy(observation: Tensor) -> Tensor:
        kept.extend([observation] if is_keeping else [])
        return observation[..., :2] + 1

    recording = Recording(TensorDictModule(policy, ["observation"], ["action"]))
    assert recording.actor.kind == "unwrapped"
    recording.rollout()
    assert recording.kept is not None
    assert not recording.kept.found()
    is_keeping = True
    recording.rollout(1)
    assert recording.kept.found()
    kept.clear()
    recording.actor.read_copies()
    recording.rollout()
    assert torch.equal(kept[0], inputs_of(recording.stage, 0)["observation",])


def test_the_probe_of_the_actor() -> None:
    recording = Recording(actor(), interaction=InteractionType.MODE)
    outputs = recording.actor.probe()
    expected = recording.expected(recording.policy)
    assert {key: value.shape for key, value in outputs.items()} == {k: v[:, 0].shape for k, v in expected.items()}
    assert torch.equal(outputs["action",], expected["action",][:, 0])


# Changes after construction


def test_hooks_of_inner_modules_run() -> None:
    policy = actor()
    calls: list[int] = []
    recording = Recording(policy)
    policy[0].module[0].register_forward_hook(lambda *_: calls.append(1))
    policy[0].module.register_forward_hook(lambda module, args, output: output + 1)
    check_rollout(recording, policy)
    assert recording.actor.kind == "unwrapped"
    assert len(calls) == 2 * COLUMNS  # by the actor, and by the policy itself


def replace_network(policy: Any) -> None:
    policy[0].module = net()


def replace_hidden_module(policy: Any) -> None:
    policy._det_part.module[0] = mod("logits")


def replace_distribution(policy: Any) -> None:
    policy[1].distribution_class = d.OneHotCategorical


def add_hook(policy: Any) -> None:
    policy.register_forward_hook(doubled)


def override(policy: Any) -> None:
    forward = policy.forward
    policy.forward = lambda td: doubled(policy, forward(td))


def stop_scoring(policy: Any) -> None:
    policy[1].return_log_prob = False


@pytest.mark.parametrize("change", [replace_network, replace_hidden_module, add_hook, override])
def test_a_change_of_the_policy_counts_from_the_next_rollout_on(change: Callable[[Any], None]) -> None:
    policy = actor()
    recording = check(policy, "unwrapped")
    change(policy)
    torch.manual_seed(2)
    found = recording.rollout()
    torch.manual_seed(2)
    expected = recording.expected(policy)
    assert recording.actor.kind == "tensordict"
    for key, value in found.items():
        assert torch.equal(value, expected.get(key, torch.zeros_like(value))), key


@pytest.mark.parametrize(
    ("change", "found"),
    [(stop_scoring, r"outputs .* found \['logits', 'action'\]"), (replace_distribution, "'action': .* found .* float32")],
)
def test_outputs_that_are_others_with_a_change(change: Callable[[Any], None], found: str) -> None:
    policy = actor()
    recording = check(policy, "unwrapped")
    change(policy)
    with pytest.raises(SpecMismatch, match=found):
        recording.rollout()
    assert recording.actor.kind == "tensordict"


def test_a_change_that_is_undone() -> None:
    policy = actor()
    recording = check(policy, "unwrapped")
    handle = policy.register_forward_hook(doubled)
    check_rollout(recording, policy)
    assert recording.actor.kind == "tensordict"
    handle.remove()
    check_rollout(recording, policy)
    assert recording.actor.kind == "unwrapped"


def test_a_deleted_attribute_is_a_change() -> None:
    policy = actor()
    recording = check(policy, "unwrapped")
    del policy[0].strict
    policy[0].strictness = False
    with pytest.raises(AttributeError, match="strict"):
        recording.rollout()


@pytest.mark.parametrize("change", ["train", "eval"])
def test_modes_and_new_weights_are_no_change(change: str) -> None:
    policy = ProbSequential(TensorDictModule(nn.Sequential(net(), nn.Dropout()), ["observation"], ["logits"]), prob())
    getattr(policy, "eval" if change == "train" else "train")()
    recording = check(policy, "unwrapped")
    getattr(policy, change)()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1)
    check_rollout(recording, policy)
    assert recording.actor.kind == "unwrapped"


def test_options_of_a_distribution_may_change() -> None:
    options = {"scale": 1.0}
    distribution = Prob(["loc"], ["action"], distribution_class=d.Normal, distribution_kwargs=options)
    policy = TensorDictSequential(mod("loc"), distribution)
    recording = check(policy, "unwrapped")
    options["scale"] = 3.0
    check_rollout(recording, policy)
    assert recording.actor.kind == "unwrapped"


# Errors in a rollout


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("option", [None, False, True])
def test_arguments_of_distributions_are_checked_where_the_policy_would(
    option: bool | None, default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torchrl sets the default to False when it is imported.
    monkeypatch.setattr(d.Distribution, "_validate_args", default)
    options = {"scale": 1.0} if option is None else {"scale": 1.0, "validate_args": option}
    policy = TensorDictSequential(mod("loc"), Prob(["loc"], ["action"], distribution_kwargs=options))
    policy[1].distribution_class = d.Normal
    recording = Recording(policy)
    with torch.no_grad():
        policy[0].module[-1].bias.fill_(torch.nan)
    if option or (option is None and default):
        with pytest.raises(ValueError, match="loc"):
            recording.rollout()
    else:
        assert recording.rollout()["action",].isnan().all()
    assert recording.actor.kind == "unwrapped"


def test_another_number_of_outputs_later() -> None:
    outputs = [2]

    def module(observation: Tensor) -> Any:
        return (observation, observation + 1, observation + 2)[: outputs[0]]

    recording = Recording(TensorDictModule(module, ["observation"], ["action", "other"]))
    assert recording.actor.kind == "unwrapped"
    recording.rollout(1)
    outputs[0] = 3
    with pytest.raises(SpecMismatch, match="expected 2 outputs for .*, found 3"):
        recording.rollout(1)


# Cost


def python_calls(call: Callable[[], Any]) -> int:
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def test_python_calls_of_a_column() -> None:
    policy = actor()
    recording = Recording(policy)
    recording.rollout(1)
    observation, network = recording.stage.tensors["observation",], policy[0].module
    outputs = {key: torch.zeros(3, *field.shape, dtype=field.dtype) for key, field in recording.actor.outputs.items()}

    def by_hand() -> None:
        logits = network(observation)
        distribution = OneHotCategorical(logits=logits)
        action = distribution.rsample()
        outputs["action",].copy_(action)
        outputs["logits",].copy_(logits)
        outputs["action_log_prob",].copy_(distribution.log_prob(action))

    assert isinstance(recording.actor, UnwrappedActor)
    with torch.inference_mode():
        assert python_calls(lambda: recording.actor.act(0)) - python_calls(by_hand) <= 7
