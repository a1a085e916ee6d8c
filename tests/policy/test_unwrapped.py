"""Policies of TensorDict modules, called by their parts: the same bits, or the TensorDict path."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    TensorDictModule,
    TensorDictSequential,
    WrapModule,
    set_interaction_type,
    set_skip_existing,
)
from tensordict.nn import ProbabilisticTensorDictModule as Prob
from tensordict.nn import ProbabilisticTensorDictSequential as ProbSequential
from tensordict.nn.distributions import Delta, NormalParamExtractor
from torch import Tensor, nn
from torch import distributions as d
from torchrl.data import Bounded
from torchrl.modules import (
    Actor,
    ActorCriticOperator,
    ActorCriticWrapper,
    ActorValueOperator,
    EGreedyModule,
    OneHotCategorical,
    ProbabilisticActor,
    SafeModule,
    SafeSequential,
    TanhNormal,
    ValueOperator,
)
from torchrl.modules.tensordict_module import SafeProbabilisticModule, SafeProbabilisticTensorDictSequential

from reap.errors import SpecMismatch
from reap.keys import Key
from reap.layout import Field
from reap.policy.steps import Plan, UnwrapError
from reap.policy.unwrapped import UnwrappedActor
from tests.architecture import ROOT
from tests.policy.recording import COLUMNS, OBSERVATION, RANDOM, Recording, called, check, check_rollout, inputs_of

Policy = Callable[[], Any]
KNOWN = list(OBSERVATION)


def net(n_out: int = 2, n_in: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(n_in, 8), nn.Tanh(), nn.Linear(8, n_out))


def mod(out: Any = "action", n: int = 2, cls: type = TensorDictModule, **options: Any) -> Any:
    return cls(net(n), in_keys=["observation"], out_keys=[out], **options)


def prob(cls: type = Prob, **options: Any) -> Any:
    kwargs = {"out_keys": ["action"], "distribution_class": d.OneHotCategorical, "return_log_prob": True, **options}
    return cls(in_keys=["logits"], **kwargs)


def actor(**options: Any) -> ProbabilisticActor:
    kwargs = {"distribution_class": OneHotCategorical, "return_log_prob": True, **options}
    return ProbabilisticActor(mod("logits"), in_keys=["logits"], **kwargs)


def normal_parts(cls: type = TensorDictModule) -> list[Any]:
    return [mod("params", 4, cls), cls(NormalParamExtractor(), in_keys=["params"], out_keys=["loc", "scale"])]


def chain() -> list[TensorDictModule]:
    return [
        mod("hidden", 6),
        TensorDictModule(nn.Linear(6, 3), in_keys=["hidden"], out_keys=["deep"]),
        TensorDictModule(lambda deep, hidden: deep[..., :2] * hidden[..., :2], ["deep", "hidden"], ["action"]),
    ]


def two_samples() -> list[Any]:
    return [
        mod("loc"),
        Prob(in_keys=["loc"], out_keys=["goal"], distribution_class=d.Normal, distribution_kwargs={"scale": 0.5}),
        TensorDictModule(torch.tanh, in_keys=["goal"], out_keys=["centre"]),
        Prob(
            in_keys={"loc": "centre"},
            out_keys=["action"],
            distribution_class=d.Normal,
            distribution_kwargs={"scale": 2.0},
            return_log_prob=True,
        ),
    ]


def gives_a_dict(observation: Tensor) -> dict[Any, Tensor]:
    return {"extra": observation.sum(-1), "action": observation[..., :2], "unused": observation}


# Modules that are unwrapped

CLASSES: dict[str, Policy] = {
    "module": mod,
    "module of a function": lambda: TensorDictModule(torch.sin, ["observation"], ["action"]),
    "module, strict": lambda: mod(strict=True),
    "module, two outputs": lambda: TensorDictModule(lambda x: (x + 1, x.sum(-1)), ["observation"], ["action", "sum"]),
    "module, a tuple of one": lambda: TensorDictModule(lambda x: (x + 1,), ["observation"], ["action"]),
    "module, a named tuple": lambda: TensorDictModule(
        lambda x: x.max(-1, keepdim=True), ["observation"], ["action", "index"]
    ),
    "module, dropped output": lambda: TensorDictModule(lambda x: (x, 2 * x), ["observation"], ["_", "action"]),
    "module, a key twice": lambda: TensorDictModule(lambda x: (x, 2 * x), ["observation"], ["action", "action"]),
    "module, a dict": lambda: TensorDictModule(gives_a_dict, ["observation"], ["action", "extra"]),
    "module, its input": lambda: TensorDictModule(lambda x: (x, x[..., :2]), ["observation"], ["action", "part"]),
    "sequence": lambda: TensorDictSequential(*chain()),
    "sequence, inplace": lambda: TensorDictSequential(*chain(), inplace=True),
    "sequence, named": lambda: TensorDictSequential(OrderedDict(zip("abc", chain(), strict=True))),
    "sequence of sequences": lambda: TensorDictSequential(TensorDictSequential(*chain()[:2]), chain()[2]),
    "sequence, the same module twice": lambda: TensorDictSequential(*[mod()] * 2),
    "distribution alone": lambda: Prob(in_keys={"param": "observation"}, out_keys=["action"]),
    "distribution in a sequence": lambda: TensorDictSequential(mod("logits"), prob()),
    "distribution, no key": lambda: TensorDictSequential(mod(), Prob(in_keys={"param": "action"})),
    "probabilistic sequence": lambda: ProbSequential(mod("logits"), prob()),
    "probabilistic sequence, named": lambda: ProbSequential(OrderedDict(a=mod("logits"), b=prob())),
    "probabilistic sequence, two samples": lambda: ProbSequential(*two_samples()),
    "probabilistic sequence, last counts": lambda: ProbSequential(*two_samples(), return_composite=False),
    "probabilistic sequence, module last": lambda: ProbSequential(
        mod("logits"), prob(out_keys=["choice"]), TensorDictModule(lambda x: x + 1, ["choice"], ["action"])
    ),
    "probabilistic sequence, inside": lambda: TensorDictSequential(
        ProbSequential(mod("logits"), prob()), TensorDictModule(torch.sin, ["action"], ["wave"])
    ),
    "SafeModule": lambda: mod(cls=SafeModule),
    "SafeModule, spec": lambda: mod(cls=SafeModule, spec=Bounded(-1, 1, (2,))),
    "SafeSequential": lambda: SafeSequential(*normal_parts(SafeModule), mod(cls=SafeModule)),
    "SafeProbabilisticModule": lambda: SafeSequential(mod("logits"), prob(SafeProbabilisticModule)),
    "SafeProbabilisticTensorDictSequential": lambda: SafeProbabilisticTensorDictSequential(
        mod("logits"), prob(SafeProbabilisticModule)
    ),
    "Actor": lambda: Actor(net()),
    "ValueOperator": lambda: ValueOperator(net(), out_keys=["action"]),
    "ProbabilisticActor": actor,
    "ProbabilisticActor, no log-probability": lambda: actor(return_log_prob=False),
    "ProbabilisticActor, its key": lambda: actor(log_prob_key="sample_log_prob"),
    "ProbabilisticActor, of a sequence": lambda: ProbabilisticActor(
        TensorDictSequential(*normal_parts()), in_keys=["loc", "scale"], distribution_class=TanhNormal
    ),
    "ActorValueOperator": lambda: ActorValueOperator(
        TensorDictModule(net(4), ["observation"], ["hidden"]),
        ProbabilisticActor(
            TensorDictModule(net(2), ["hidden"], ["logits"]),
            in_keys=["logits"],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        ),
        ValueOperator(net(1), in_keys=["hidden"]),
    ),
    "ActorCriticOperator": lambda: ActorCriticOperator(
        TensorDictModule(net(4), ["observation"], ["hidden"]),
        TensorDictModule(net(2), ["hidden"], ["action"]),
        ValueOperator(net(1, 2), in_keys=["action"], out_keys=["state_action_value"]),
    ),
    "ActorCriticWrapper": lambda: ActorCriticWrapper(actor(), ValueOperator(net(1))),
}


@pytest.mark.parametrize("make", CLASSES.values(), ids=CLASSES)
def test_classes(make: Policy) -> None:
    check(make(), "unwrapped")


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
@pytest.mark.parametrize("make", [mod, actor, lambda: TensorDictSequential(*chain())])
def test_batches(make: Policy, batch: tuple[int, ...]) -> None:
    check(make(), "unwrapped", batch=batch)


DISTRIBUTIONS: dict[str, tuple[Any, Any]] = {
    "one-hot": (d.OneHotCategorical, "logits"),
    "torchrl's one-hot": (OneHotCategorical, "logits"),
    "one-hot, probabilities": (OneHotCategorical, "probs"),
    "categorical": (d.Categorical, "logits"),
    "normal": (d.Normal, ("loc", "scale")),
    "independent normal": (lambda loc, scale: d.Independent(d.Normal(loc, scale), 1), ("loc", "scale")),
    "tanh-normal": (TanhNormal, ("loc", "scale")),
    "delta": (Delta, "param"),
}


def drawing(cls: type, distribution: Any, names: Any, scored: bool) -> TensorDictSequential:
    """A policy whose sample is no action: some distributions have no number for some interaction types."""
    if isinstance(names, str):
        last = nn.Softmax(-1) if names == "probs" else nn.Identity()
        params = [TensorDictModule(nn.Sequential(net(3), last), ["observation"], [names])]
        keys = [names]
    else:
        params, keys = normal_parts(), list(names)
    choice = cls(in_keys=keys, out_keys=["choice"], distribution_class=distribution, return_log_prob=scored)
    return TensorDictSequential(*params, choice, mod())


@pytest.mark.filterwarnings("ignore:deterministic_sample wasn't found:UserWarning")
@pytest.mark.parametrize("scored", [False, True], ids=["sample", "log-probability"])
@pytest.mark.parametrize("cls", [Prob, SafeProbabilisticModule])
@pytest.mark.parametrize("interaction", InteractionType)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name: str, interaction: InteractionType, cls: type, scored: bool) -> None:
    policy = drawing(cls, *DISTRIBUTIONS[name], scored)
    with set_interaction_type(interaction):
        error = raised_by(lambda: called(deepcopy(policy), Recording(mod()).rollout_input()))
    if error is None:
        check(policy, "unwrapped", interaction=interaction)
    else:
        with pytest.raises(type(error)):
            Recording(policy, interaction=interaction)


def raised_by(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except (NotImplementedError, RuntimeError, ValueError, AttributeError) as error:
        return error
    return None


def test_the_defaults_count_where_nobody_says_what_to_do() -> None:
    for default in (RANDOM, InteractionType.MODE):
        policy = actor(default_interaction_type=default)
        check(policy, "unwrapped", interaction=None)
        check(ProbSequential(mod("logits"), *two_of_one_kind(default)), "unwrapped", interaction=None)


def two_of_one_kind(default: InteractionType) -> list[Any]:
    """Two distributions with defaults of their own, of which the last one's holds for both."""
    first = prob(out_keys=["choice"], default_interaction_type=InteractionType.MEAN, return_log_prob=False)
    return [first, prob(default_interaction_type=default)]


def test_the_interaction_type_that_is_set_counts() -> None:
    policy = actor()
    with set_interaction_type(InteractionType.MODE):
        recording = Recording(policy, interaction=None)
        found = recording.rollout()
    recording.interaction = InteractionType.MODE
    assert torch.equal(found["action",], recording.expected(policy)["action",])


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


def test_the_trial_leaves_nothing_behind() -> None:
    policy = ProbSequential(
        TensorDictModule(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), net()), ["observation"], ["logits"]), prob()
    )
    before = deepcopy(policy.state_dict())
    recording = Recording(policy)
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


# What is not unwrapped, and why


class Subclass(TensorDictModule):
    """A class that is not known, though it does the same."""


def hooked(add: Callable[[Any], Any]) -> Any:
    policy = actor()
    add(policy)
    return policy


def doubled(module: nn.Module, *args: Any) -> Any:
    return args[-1].set("action", 2 * args[-1]["action"])


def select(policy: Any, *keys: str) -> Any:
    return policy.select_out_keys(*keys)


def overriding() -> TensorDictModule:
    policy = mod()
    policy.forward = lambda td: td.set("action", td["observation"][..., :2])
    return policy


def composite() -> ProbSequential:
    return ProbSequential(
        mod(("params", "action", "loc")),
        Prob(
            in_keys=["params"],
            out_keys=["action"],
            distribution_class=CompositeDistribution,
            distribution_kwargs={
                "distribution_map": {"action": d.Normal},
                "extra_kwargs": {"action": {"scale": torch.ones(2)}},
            },
        ),
    )


REFUSED: dict[str, tuple[Policy, str]] = {
    "subclass": (lambda: Subclass(net(), ["observation"], ["action"]), "Subclass is no class"),
    "subclass inside": (lambda: TensorDictSequential(Subclass(net(), ["observation"], ["action"])), "Subclass"),
    "any TensorDict function": (lambda: TensorDictSequential(mod(), WrapModule(lambda td: td)), "WrapModule is no"),
    "exploration": (lambda: TensorDictSequential(mod(), EGreedyModule(Bounded(-1, 1, (3, 2)))), "EGreedyModule is no"),
    "keyword arguments": (
        lambda: TensorDictModule(lambda x: x + 1, {"x": "observation"}, ["action"]),
        "TensorDictModule has _kwargs",
    ),
    "method": (
        lambda: TensorDictModule(net(), ["observation"], ["action"], method="forward"),
        "TensorDictModule has method",
    ),
    "method arguments": (
        lambda: TensorDictModule(lambda x, y: x + y, ["observation"], ["action"], method_kwargs={"y": 1}),
        "has method_kwargs",
    ),
    "not in place": (lambda: mod(inplace=False), "inplace=False"),
    "not in place, empty": (lambda: mod(inplace="empty"), "inplace='empty'"),
    "sequence not in place": (lambda: TensorDictSequential(mod(), inplace=False), "inplace=False"),
    "selected outputs": (lambda: select(TensorDictSequential(*chain()), "action"), "_select_before_return"),
    "selected outputs of a module": (
        lambda: select(TensorDictModule(lambda x: (x, x), ["observation"], ["action", "b"]), "action"),
        "_forward_hooks",
    ),
    "partial tolerance": (lambda: TensorDictSequential(mod(), partial_tolerant=True), "partial_tolerant"),
    "an input that may be missing": (
        lambda: TensorDictModule(lambda x, state: x + (0 if state is None else state), ["observation", "s"], ["action"]),
        "reads ['s']",
    ),
    "a node of a tree": (
        lambda: TensorDictSequential(mod(("a", "b")), TensorDictModule(lambda a: a["b"], ["a"], ["action"])),
        "reads ['a']",
    ),
    "a forward hook": (lambda: hooked(lambda p: p.register_forward_hook(doubled)), "has _forward_hooks"),
    "a hook before": (lambda: hooked(lambda p: p[0].register_forward_pre_hook(lambda *_: None)), "_forward_pre_hooks"),
    "a backward hook": (lambda: hooked(lambda p: p[1].register_full_backward_hook(lambda *_: None)), "_backward_hooks"),
    "a hook on the hidden sequence": (
        lambda: hooked(lambda p: p._det_part.register_forward_hook(lambda *_: None)),
        "_forward_hooks",
    ),
    "a projection": (lambda: mod(cls=SafeModule, spec=Bounded(-1e-3, 1e-3, (2,)), safe=True), "_forward_hooks"),
    "another forward": (overriding, "TensorDictModule has forward"),
    "a generator": (lambda: TensorDictSequential(mod("logits"), prob(generator=0)), "_generator"),
    "a generator's key": (lambda: TensorDictSequential(mod("logits"), prob(generator="seed")), "_generator_key"),
    "a distribution that is kept": (
        lambda: ProbSequential(mod("param"), Prob(in_keys=["param"], out_keys=["action"], cache_dist=True)),
        "cache_dist",
    ),
    "a composite distribution": (composite, "reads ['params']"),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(make: Policy, reason: str) -> None:
    with pytest.raises(UnwrapError) as caught:
        Plan(make(), KNOWN, RANDOM)
    assert reason in str(caught.value)
    check(make(), "tensordict")


def test_several_samples_are_refused() -> None:
    for options in ({"num_samples": 2}, {"num_samples": torch.Size(())}):
        with pytest.raises(UnwrapError, match="num_samples"):
            Plan(ProbSequential(mod("logits"), prob(**options)), KNOWN, RANDOM)
    with pytest.raises(UnwrapError, match="2 samples"):
        Plan(ProbSequential(mod("logits"), prob(out_keys=["a", "b"], return_log_prob=False)), KNOWN, RANDOM)


def test_existing_outputs_are_skipped_by_the_policy_itself() -> None:
    with set_skip_existing(True), pytest.raises(UnwrapError, match="skip"):
        Plan(mod(), KNOWN, RANDOM)


def test_hooks_for_all_modules_are_refused() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(UnwrapError, match="all modules"):
            Plan(mod(), KNOWN, RANDOM)
    finally:
        handle.remove()


def test_a_compiled_module_is_refused() -> None:
    policy = mod()
    policy._compiled_call_impl = policy.forward
    with pytest.raises(UnwrapError, match="_compiled_call_impl"):
        Plan(policy, KNOWN, RANDOM)


def test_a_class_under_a_borrowed_name_is_refused() -> None:
    fake = type("SafeModule", (TensorDictModule,), {"__module__": SafeModule.__module__})
    with pytest.raises(UnwrapError, match="SafeModule is no class"):
        Plan(mod(cls=fake), KNOWN, RANDOM)


def test_a_sample_that_is_drawn_before_is_refused() -> None:
    policy = ProbSequential(TensorDictModule(lambda x: (x, x), ["observation"], ["logits", "action"]), prob())
    with pytest.raises(UnwrapError, match="out_keys"):
        Plan(policy, KNOWN, RANDOM)


@pytest.mark.parametrize(
    "module",
    [lambda x: x.tolist(), lambda x: x.numpy(), lambda x: {"deep": x}],
    ids=["a list", "an array", "a dict"],
)
def test_outputs_that_are_no_tensors_go_the_other_way(module: Callable[[Tensor], Any]) -> None:
    policy = TensorDictSequential(mod(), TensorDictModule(module, ["observation"], ["other"]))
    plan = Plan(policy, KNOWN, RANDOM)
    assert type(plan.run([torch.zeros(3, 4)])[-1]) is not Tensor
    try:
        recording = Recording(policy)
    except SpecMismatch:  # some of them are no tensors for the policy itself either
        return
    assert recording.actor.kind == "tensordict"


def test_torchrl_is_not_imported() -> None:
    code = "import sys, reap.policy.choose; print('torchrl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


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


@pytest.mark.parametrize(
    "change", [replace_network, replace_hidden_module, replace_distribution, add_hook, override, stop_scoring]
)
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
    policy = TensorDictSequential(mod("loc"), Prob(["loc"], ["action"], distribution_class=d.Normal))
    policy[1].distribution_kwargs = {"scale": 1.0}
    recording = check(policy, "unwrapped")
    policy[1].distribution_kwargs["scale"] = 3.0
    check_rollout(recording, policy)
    assert recording.actor.kind == "unwrapped"


# Errors in a rollout


def test_arguments_of_distributions_are_checked_as_they_are_by_default() -> None:
    for options, is_checked in (({}, True), ({"validate_args": False}, False)):
        policy = TensorDictSequential(
            mod("loc"),
            TensorDictModule(lambda x: torch.ones_like(x[..., :2]), ["observation"], ["scale"]),
            Prob(["loc", "scale"], ["action"], distribution_class=d.Normal, distribution_kwargs=options),
        )
        recording = Recording(policy)
        policy[1].module = policy[1].module  # the same object: no change
        with torch.no_grad():
            policy[0].module[-1].bias.fill_(torch.nan)
        if is_checked:
            with pytest.raises(ValueError, match="loc"):
                recording.rollout()
        else:
            assert recording.rollout()["action",].isnan().all()
        assert recording.actor.kind == "unwrapped"


def test_another_number_of_outputs_later() -> None:
    answers = [1, 1, 1, 1, 2]

    def module(observation: Tensor) -> Any:
        parts = (observation, observation + 1, observation + 2)
        return parts[:2] if answers.pop() == 1 else parts

    recording = Recording.__new__(Recording)
    answers[:] = [2, 1, 1, 1, 1]
    recording.__init__(TensorDictModule(module, ["observation"], ["action", "other"]))
    assert recording.actor.kind == "unwrapped"
    recording.rollout(1)
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
