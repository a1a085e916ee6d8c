"""What a policy holds: all that the pickler visits, and nothing else, by names that are the same in another process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from reap.errors import OptionError
from reap.policy.contents.held import held_by
from reap.testing import BN, Const
from reap.weights.weight_layout import describe
from reap.workers.pickling import dumps
from tests.policy.forms import FORMS, Agent, Hiding, Player, a_closure, first

NET = Const(3.0)


def names(policy: Any) -> list[str]:
    return list(held_by(policy).tensors())


@pytest.mark.parametrize("form", FORMS)
def test_each_weight_has_a_name(form: str) -> None:
    make, name = FORMS[form]
    agent = Agent(1.0)
    policy = make(agent)
    found = held_by(policy).tensors()
    assert list(found) == [name]
    assert found[name] is agent.w
    arrived = held_by(pickle.loads(dumps(policy, "policy"))).tensors()
    assert list(arrived) == [name], "the same in the process that it is sent to"
    assert arrived[name] is not agent.w
    assert torch.equal(arrived[name], agent.w)


@pytest.mark.parametrize(
    "module", [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.GRU(2, 3, 2), BN(1), nn.ParameterList([torch.ones(1)])]
)
def test_modules_have_the_names_of_their_state_dict(module: nn.Module) -> None:
    held = held_by(module)
    assert list(held.state()) == list(module.state_dict())
    assert held.tensors() == {**dict(module.named_parameters()), **dict(module.named_buffers())}


def by_reference(observation: Tensor) -> Tensor:
    return NET(observation)


@pytest.mark.parametrize(
    "policy", [None, by_reference, torch.neg, lambda observation: observation, print, Player(by_reference)]
)
def test_what_is_met_by_name_is_not_held(policy: Any) -> None:
    """Functions of modules that can be imported travel by name; the other process imports its own, with what they use."""
    held = held_by(policy)
    assert not held
    assert (held.tensors(), held.state(), held.modules()) == ({}, {}, {})


class Forgetful:
    """Leaves out of its pickle what it can make again."""

    def __init__(self) -> None:
        self.net, self.cache = Const(1.0), [Const(2.0)]

    def __getstate__(self) -> dict[str, Any]:
        return {"net": self.net, "cache": []}

    def __call__(self, observation: Tensor) -> Tensor:
        return self.net(observation)


def test_what_the_pickler_leaves_out_is_not_held() -> None:
    assert names(Forgetful()) == ["net.w"]


def test_a_shared_module_has_one_name_the_shortest() -> None:
    net = Const(1.0)
    assert names([[net], net]) == ["1.w"]
    both = nn.Sequential(net)
    assert set(names({"part": net, "whole": both})) == {"part.w", "whole.0.w"}, "one parameter of two modules"


def test_a_leaf_that_wants_a_gradient_is_a_parameter() -> None:
    models = [nn.Linear(1, 1) for _ in range(2)]
    parameters, buffers = torch.func.stack_module_state(models)
    skeleton = models[0].to("meta")

    def ensemble(observation: Tensor) -> Tensor:
        def one(p: Any, b: Any) -> Any:
            return torch.func.functional_call(skeleton, (p, b), (observation,))

        return torch.func.vmap(one)(parameters, buffers).mean(0)

    assert names(ensemble) == ["parameters.weight", "parameters.bias"], "the skeleton has no values"


class Chain:
    """Made of its items by a class whose inside is not to be seen."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __reduce__(self) -> Any:
        return Chain, (NET,)

    def __call__(self, observation: Tensor) -> Tensor:
        return observation


BY_A_TUPLE: Any = {(1, 2): NET}
IN_A_SET: Any = {NET}
UNNAMED: dict[str, tuple[Any, str]] = {
    "set": (a_closure(IN_A_SET), "policy a_closure.<locals>.act: 'net' is a set, which holds a Const"),
    "key": (a_closure(BY_A_TUPLE), "policy a_closure.<locals>.act: 'net' is a dict, which holds a Const"),
    "module": (Hiding([{NET}], first), "policy Hiding: 'hidden.0' is a set, which holds a Const"),
    "pickle": (TensorDictModule(Chain(1), ["a"], ["b"]), "policy TensorDictModule: 'module' is a Chain, which holds a Const"),
    "itself": (Chain(1), "policy Chain: it holds a Const"),
}


@pytest.mark.parametrize("case", UNNAMED)
def test_a_place_without_a_name(case: str) -> None:
    policy, message = UNNAMED[case]
    with pytest.raises(OptionError) as caught:
        held_by(policy)
    assert str(caught.value) == (
        f"{message} that has no name there, by which its weights could be sent to workers and saved; keep it in an attribute, "
        "a variable, a list or a dict with strings as keys"
    )


@pytest.mark.filterwarnings("ignore:.*quantiz:DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_weights_that_torch_has_packed() -> None:
    layer = nn.Sequential(nn.Linear(3, 1))
    quantized = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
    assert held_by(quantized).packs_weights
    assert not held_by(layer).packs_weights
    assert held_by(quantized).tensors() == {}
    with pytest.raises(OptionError) as caught:
        describe(held_by(quantized))
    assert str(caught.value) == (
        "weights: the policy has weights in a form of torch's own (as quantized layers have), which cannot be copied into "
        "another policy; collect with it in this process, or give workers the policy that it was made from"
    )


def test_what_cannot_be_pickled_does_no_harm() -> None:
    generator = (i for i in range(3))
    net = Const(1.0)
    assert names([generator, print, net]) == ["2.w"]


def test_another_policy_of_the_same_form() -> None:
    one, other = Agent(1.0), Agent(2.0)
    held = held_by(a_closure(one))
    same = held.of(a_closure(other))
    assert same is not None
    assert same.tensors()["net.w"] is other.w
    module = held.of(other)
    assert module is not None
    assert module.tensors()["net.w"] is other.w, "the one module that has all weights stands for the function"
    assert held.of(3) is None
    assert held.of(lambda observation: observation) is None


def test_what_is_put_in_the_place_later_counts() -> None:
    player = Player(Const(1.0))
    held = held_by(player.act)
    player.net = Const(5.0)
    assert held.tensors()["net.w"].item() == 5.0
