"""Policies that hold a net in other forms than a module around it: what people hand over as a policy."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from reap.testing import Const


class Agent(Const):
    """A module with a method that acts."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(value)
        self.eps = 0.0

    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(observation) + self.eps

    def act(self, observation: Tensor) -> Tensor:
        return self(observation)


class Player:
    """An object that is no module, with one, and a way back to itself."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.eps, self.chooser = net, 0.0, Chooser(self)

    def act(self, observation: Tensor) -> Tensor:
        return self.chooser.choose(observation) + self.eps

    __call__ = act


class Chooser:
    def __init__(self, player: Player) -> None:
        self.player = player

    def choose(self, observation: Tensor) -> Tensor:
        return self.player.net(observation)


class WithSlots:
    __slots__ = ("net",)

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, observation: Tensor) -> Tensor:
        return self.net(observation)


class Items(dict[str, Any]):
    """A dict that acts: as a policy it is no dict of weights."""

    def __call__(self, observation: Tensor) -> Tensor:
        return self["net"](observation)


class PythonItems(UserDict[str, Any]):
    """The same, with its items in an attribute."""

    def __call__(self, observation: Tensor) -> Tensor:
        return self["net"](observation)


class Hiding(nn.Module):
    """A module that holds a net where torch does not look."""

    def __init__(self, hidden: Any, find: Callable[[Any], Any]) -> None:
        super().__init__()
        self.hidden, self.find = hidden, find

    def forward(self, observation: Tensor) -> Tensor:
        return self.find(self.hidden)(observation)


class WithLock(Player):
    """What cannot be pickled."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.lock = Lock()

    def act(self, observation: Tensor) -> Tensor:
        with self.lock:
            return super().act(observation)


def itself(hidden: Any) -> Any:
    return hidden


def first(hidden: Any) -> Any:
    return hidden[0]


def named(hidden: Any) -> Any:
    return hidden["net"]


def call(net: Any, observation: Tensor) -> Tensor:
    return net(observation)


def call_named(observation: Tensor, net: Any) -> Tensor:
    return net(observation)


def in_tensordict(function: Any) -> TensorDictModule:
    return TensorDictModule(function, in_keys=["observation"], out_keys=["action"])


def a_closure(net: nn.Module) -> Any:
    def act(observation: Tensor) -> Tensor:
        return net(observation)

    return act


def a_default(net: nn.Module) -> Any:
    def act(observation: Tensor, *, net: nn.Module = net) -> Tensor:
        return net(observation)

    return partial(act, net=net)


def an_attribute_of_a_function(net: nn.Module) -> Any:
    def act(observation: Tensor) -> Tensor:
        return act.net(observation)  # type: ignore[attr-defined]

    act.net = net  # type: ignore[attr-defined]
    return act


def a_decorated_one(net: nn.Module) -> Any:
    return torch.no_grad()(a_closure(net))


def a_loose_parameter(net: Const) -> Any:
    w = net.w
    return lambda observation: w.expand(*observation.shape[:-1], -1)


def parameters_in_a_tensordict(net: Const) -> Any:
    parameters = TensorDict({"w": net.w})
    return lambda observation: parameters["w"].expand(*observation.shape[:-1], -1)


def a_local_class(net: nn.Module) -> Any:
    class Local:
        def __call__(self, observation: Tensor) -> Tensor:
            return net(observation)

    return Local()


def two_that_share_it(net: Const) -> Any:
    player = Player(net)
    return TensorDictSequential(
        TensorDictModule(player.act, in_keys=["observation"], out_keys=["half"]),
        TensorDictModule(lambda half: half + player.act(half) - player.act(half), in_keys=["half"], out_keys=["action"]),
    )


FORMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "module": (itself, "w"),
    "bound method": (lambda net: net.act, "w"),
    "method of a player": (lambda net: Player(net).act, "net.w"),
    "callable object": (Player, "net.w"),
    "slots": (WithSlots, "net.w"),
    "a dict that acts": (lambda net: Items(net=net), "net.w"),
    "a mapping in Python that acts": (lambda net: PythonItems(net=net), "data.net.w"),
    "closure": (a_closure, "net.w"),
    "closure around a closure": (lambda net: a_closure(a_closure(net)), "net.net.w"),
    "default": (a_default, "keywords.net.w"),
    "attribute of a function": (an_attribute_of_a_function, "net.w"),
    "decorated": (a_decorated_one, "func.net.w"),
    "partial": (lambda net: partial(call, net), "args.0.w"),
    "partial by name": (lambda net: partial(call_named, net=net), "keywords.net.w"),
    "nested partials": (lambda net: partial(partial(call, net)), "args.0.w"),
    "tensordict around a method": (lambda net: in_tensordict(net.act), "module.w"),
    "tensordict around a player": (lambda net: in_tensordict(Player(net)), "module.net.w"),
    "two that share it": (two_that_share_it, "module.0.module.net.w"),
    "list in a module": (lambda net: Hiding([net], first), "hidden.0.w"),
    "tuple in a module": (lambda net: Hiding((net,), first), "hidden.0.w"),
    "dict in a module": (lambda net: Hiding({"net": net}, named), "hidden.net.w"),
    "lambda in a module": (lambda net: Hiding(a_closure(net), itself), "hidden.net.w"),
    "method in a module": (lambda net: Hiding(net.act, itself), "hidden.w"),
    "loose parameter": (a_loose_parameter, "w"),
    "tensordict of parameters": (parameters_in_a_tensordict, "parameters.w"),
    "local class": (a_local_class, "__class__.__call__.net.w"),
}
"""How a policy is made of an `Agent`, and the name of its only parameter in it."""
