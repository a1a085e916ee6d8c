"""Which policies are taken apart, with which results, and why others are not."""

from __future__ import annotations

import inspect
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
from tensordict.nn.distributions import Delta
from torch import Tensor, nn
from torch import distributions as d
from torchrl.data import Bounded
from torchrl.modules import (
    Actor,
    ActorCriticOperator,
    ActorCriticWrapper,
    ActorValueOperator,
    AdditiveGaussianModule,
    OneHotCategorical,
    ProbabilisticActor,
    SafeModule,
    SafeSequential,
    TanhNormal,
    ValueOperator,
)
from torchrl.modules.tensordict_module import SafeProbabilisticModule, SafeProbabilisticTensorDictSequential

from reap.policy.actors.steps import StepPlan, UnwrapError
from tests.pairwise import pairwise
from tests.policy.policies import STAGE, actor, chain, doubled, mod, net, normal_parts, prob, two_samples
from tests.policy.recording import RANDOM, Recording, called, check

Policy = Callable[[], Any]


def gives_a_dict(observation: Tensor) -> dict[Any, Tensor]:
    return {"extra": observation.sum(-1), "action": observation[..., :2], "unused": observation}


# Modules that are unwrapped

CLASSES: dict[str, Policy] = {
    "module": mod,
    "module of a function": lambda: TensorDictModule(torch.sin, ["observation"], ["action"]),
    "module, strict": lambda: mod(strict=True),
    "module, two outputs": lambda: TensorDictModule(lambda x: (x + 1, x.sum(-1)), ["observation"], ["action", "sum"]),
    "module, a tuple of one": lambda: TensorDictModule(lambda x: (x + 1,), ["observation"], ["action"]),
    "module, a named tuple": lambda: TensorDictModule(lambda x: x.max(-1, keepdim=True), ["observation"], ["action", "index"]),
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
@pytest.mark.parametrize(
    ("name", "interaction", "cls", "scored"),
    pairwise(list(DISTRIBUTIONS), list(InteractionType), [Prob, SafeProbabilisticModule], [False, True]),
)
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


# What is not unwrapped, and why


class Subclass(TensorDictModule):
    """A class that is not known, though it does the same."""


def hooked(add: Callable[[Any], Any]) -> Any:
    policy = actor()
    add(policy)
    return policy


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
    "exploration": (
        lambda: TensorDictSequential(mod(), AdditiveGaussianModule(Bounded(-1, 1, (3, 2)))),
        "AdditiveGaussianModule is no",
    ),
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
    "a generator's key": (lambda: TensorDictSequential(mod("logits"), prob(generator="seed")), "_generator_key"),
    "a distribution that is kept": (
        lambda: ProbSequential(mod("param"), Prob(in_keys=["param"], out_keys=["action"], cache_dist=True)),
        "cache_dist",
    ),
    "a composite distribution": (composite, "reads ['params']"),
}


HAS_GENERATORS = "generator" in inspect.signature(Prob.__init__).parameters
"""tensordict 0.10 draws from torch's own generator only."""
if not HAS_GENERATORS:
    del REFUSED["a generator's key"]


@pytest.mark.filterwarnings("ignore:For backward hooks to be called:UserWarning")
@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(make: Policy, reason: str) -> None:
    with pytest.raises(UnwrapError) as caught:
        StepPlan(make(), STAGE, RANDOM)
    assert reason in str(caught.value)
    check(make(), "tensordict")


@pytest.mark.skipif(not HAS_GENERATORS, reason="this tensordict's modules take no generator")
def test_a_generator_of_the_policy_is_refused() -> None:
    policy = TensorDictSequential(mod("logits"), prob(generator=torch.Generator().manual_seed(0)))
    with pytest.raises(UnwrapError, match="_generator"):
        StepPlan(policy, STAGE, RANDOM)
    assert Recording(policy).actor.kind == "tensordict"


def test_several_samples_are_refused() -> None:
    for options in ({"num_samples": 2}, {"num_samples": torch.Size(())}):
        with pytest.raises(UnwrapError, match="num_samples"):
            StepPlan(ProbSequential(mod("logits"), prob(**options)), STAGE, RANDOM)
    with pytest.raises(UnwrapError, match="2 samples"):
        StepPlan(ProbSequential(mod("logits"), prob(out_keys=["a", "b"], return_log_prob=False)), STAGE, RANDOM)


def test_existing_outputs_are_skipped_by_the_policy_itself() -> None:
    with set_skip_existing(True), pytest.raises(UnwrapError, match="skip"):
        StepPlan(mod(), STAGE, RANDOM)


def test_hooks_for_all_modules_are_refused() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(UnwrapError, match="all modules"):
            StepPlan(mod(), STAGE, RANDOM)
    finally:
        handle.remove()


def test_a_compiled_module_is_refused() -> None:
    policy = mod()
    policy.compile(backend="eager")
    with pytest.raises(UnwrapError, match="_compiled_call_impl"):
        StepPlan(policy, STAGE, RANDOM)


def test_a_class_under_a_borrowed_name_is_refused() -> None:
    fake = type("SafeModule", (TensorDictModule,), {"__module__": SafeModule.__module__})
    with pytest.raises(UnwrapError, match="SafeModule is no class"):
        StepPlan(mod(cls=fake), STAGE, RANDOM)


def test_a_sample_that_is_drawn_before_is_refused() -> None:
    policy = ProbSequential(TensorDictModule(lambda x: (x, x), ["observation"], ["logits", "action"]), prob())
    with pytest.raises(UnwrapError, match="out_keys"):
        StepPlan(policy, STAGE, RANDOM)


@pytest.mark.parametrize(
    "module",
    [lambda x: x.tolist(), lambda x: x.numpy(), lambda x: {"deep": x}],
    ids=["a list", "an array", "a dict"],
)
def test_outputs_that_are_no_tensors_go_the_other_way(module: Callable[[Tensor], Any]) -> None:
    policy = TensorDictSequential(mod(), TensorDictModule(module, ["observation"], ["other"]))
    plan = StepPlan(policy, STAGE, RANDOM)
    assert type(plan.run([torch.zeros(3, 4)])[-1]) is not Tensor
    assert Recording(policy).actor.kind == "tensordict"
