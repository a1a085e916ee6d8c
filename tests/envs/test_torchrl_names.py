"""Every public class of torchrl's envs and specs that there is here too: the same arguments, the same names, or a reason."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import reap.data
import reap.envs
from reap.envs import EnvBase, EnvCreator, GymEnv, GymWrapper, ParallelEnv, SerialEnv
from reap.envs.faces.absent import ABSENT as ABSENT_ENVS
from reap.errors import OptionError
from reap.specs import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, NonTensor, OneHot, Unbounded
from reap.specs.parts.torchrl import ABSENT as ABSENT_SPECS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrl_envs = pytest.importorskip("torchrl.envs")
    from torchrl import data as torchrl_data

SPECS: dict[str, Callable[[], Any]] = {
    "Binary": lambda: Binary(3),
    "Bounded": lambda: Bounded(-1, 1, shape=2),
    "Categorical": lambda: Categorical(3),
    "Composite": lambda: Composite(a=OneHot(3)),
    "MultiCategorical": lambda: MultiCategorical([2, 3]),
    "MultiOneHot": lambda: MultiOneHot([2, 3]),
    "NonTensor": lambda: NonTensor(()),
    "OneHot": lambda: OneHot(3),
    "Unbounded": lambda: Unbounded(2),
}

ENVS: dict[str, Callable[[], Any]] = {
    "EnvBase": lambda: GymEnv("CartPole-v1"),
    "GymEnv": lambda: GymEnv("CartPole-v1"),
    "GymWrapper": lambda: GymWrapper(GymEnv("CartPole-v1").wrapped),
    "SerialEnv": lambda: SerialEnv(1, "CartPole-v1"),
    "ParallelEnv": lambda: ParallelEnv(1, "CartPole-v1"),
}

OTHER_ARGUMENTS: dict[tuple[str, str], str] = {
    ("NonTensor", "batched"): "a value is one object for each element of the shape",
    ("NonTensor", "feature_dims"): "a value is one object for each element of the shape",
    ("NonTensor", "kwargs"): "there are no further options",
    ("Bounded", "kwargs"): "`domain` is written out; `minimum` and `maximum` are low and high since torchrl 0.3",
    ("Unbounded", "kwargs"): "`domain` is written out",
    ("OneHot", "use_register"): "choices are 0 .. n-1; an env with other values numbers them",
    ("MultiOneHot", "use_register"): "choices are 0 .. n-1; an env with other values numbers them",
    ("MultiCategorical", "remove_singleton"): "the shape of a value is that of nvec",
    ("Composite", "args"): "the mapping is positional only",
    ("Composite", "data_cls"): "values are TensorDicts; make others of them with Class.from_tensordict",
    ("Composite", "step_mdp_static"): "step_mdp keeps what has no successor under next",
    ("Composite", "names"): "dimensions of specs have no names; those of batches have",
    ("EnvBase", "run_type_checks"): "one of **options",
    ("EnvBase", "spec_locked"): "one of **options; False is refused",
    ("EnvBase", "auto_reset"): "one of **options; True is refused",
    **{
        (name, option): "one of **transport"
        for name in ("SerialEnv", "ParallelEnv")
        for option in reap.envs.transport.TRANSPORT
    },
}
"""Arguments of torchrl's constructors that are not in the signature here, and why."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments(kind: type) -> list[str]:
    return list(inspect.signature(kind.__init__).parameters)[1:]


@pytest.mark.parametrize("name", [*SPECS, *ENVS, "EnvCreator"])
def test_constructors_take_the_same_arguments(name: str) -> None:
    theirs = getattr(torchrl_data if name in SPECS else torchrl_envs, name)
    ours = getattr(reap.data if name in SPECS else reap.envs, name)
    own = arguments(ours)
    lacking = [argument for argument in arguments(theirs) if argument not in own and (name, argument) not in OTHER_ARGUMENTS]
    assert not lacking


@pytest.mark.parametrize("name", [*SPECS, "EnvCreator"])
def test_the_order_of_positional_arguments_is_the_same(name: str) -> None:
    theirs = getattr(torchrl_data if name in SPECS else torchrl_envs, name)
    ours = getattr(reap.data if name in SPECS else reap.envs, name)
    own = arguments(ours)
    same = [argument for argument in arguments(theirs) if argument in own]
    assert [argument for argument in own if argument in same] == same


@pytest.mark.parametrize("name", SPECS)
def test_specs_have_the_same_names(name: str) -> None:
    spec = SPECS[name]()
    for public_name in sorted(public(getattr(torchrl_data, name))):
        if public_name in ABSENT_SPECS or (name, public_name) in OF_CHOICES:
            with pytest.raises(AttributeError):
                getattr(spec, public_name)
        else:
            assert hasattr(spec, public_name), public_name
    for public_name in ABSENT_SPECS:
        with pytest.raises(AttributeError, match=r"no attribute '\w+': \w+") as caught:
            getattr(spec, public_name)
        assert ABSENT_SPECS[public_name] in str(caught.value)


OF_CHOICES = {
    **{
        ("Binary", name): "bits are no choice among several: 0 and 1 are the values"
        for name in ("to_categorical", "to_one_hot")
    },
    **{
        ("Binary", name): "bits are no choice among several"
        for name in ("to_categorical_spec", "to_one_hot_spec", "update_mask")
    },
    ("MultiOneHot", "n"): "there are several numbers of choices: nvec",
    ("MultiCategorical", "n"): "there are several numbers of choices: nvec",
}
"""Names that torchrl's specs inherit and that mean nothing for the class; there they raise, or give wrong values."""


@pytest.mark.parametrize("name", ENVS)
def test_envs_have_the_same_names(name: str) -> None:
    of_modules = public(nn.Module) - {"to", "train", "eval", "training", "cpu", "cuda", "state_dict", "load_state_dict"}
    with ENVS[name]() as env:
        for public_name in sorted(public(getattr(torchrl_envs, name)) - of_modules):
            if public_name in ABSENT_ENVS:
                with pytest.raises(AttributeError, match="no attribute") as caught:
                    getattr(env, public_name)
                assert ABSENT_ENVS[public_name] in str(caught.value)
            else:
                assert hasattr(env, public_name), public_name


def test_creators_have_the_same_names() -> None:
    own, theirs = public(EnvCreator), public(torchrl_envs.EnvCreator) - public(nn.Module)
    assert theirs - own == {"init_", "meta_data"}, "nothing is built before the call"


def test_rollouts_take_the_same_arguments() -> None:
    own, theirs = (list(inspect.signature(kind.rollout).parameters) for kind in (EnvBase, torchrl_envs.EnvBase))
    decided = {
        "break_when_all_done",  # rows that are done cannot wait here: a collector with reset_when_done=False lets them
        "out",  # the result is a TensorDict of its own
        "set_state",  # an env that has a state has load_state_dict
        "trust_policy",  # a policy is called with the TensorDict as it is
    }
    assert set(theirs) - set(own) == decided & set(theirs)
    assert own[:4] == theirs[:4] == ["self", "max_steps", "policy", "callback"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"spec_locked": False}, "spec_locked: expected True, got False: specs are locked"),
        ({"auto_reset": True}, "auto_reset: expected False, got True: let _reset begin episodes"),
        ({"run_type_check": True}, "unknown option 'run_type_check'"),
    ],
)
def test_options_of_the_base_that_cannot_be_had(options: dict[str, Any], text: str) -> None:
    class Env(EnvBase):
        def _reset(self, tensordict: Any) -> Any:
            return self.observation_spec.zero()

        def _step(self, tensordict: Any) -> Any:
            return self.observation_spec.zero()

    assert Env(run_type_checks=True, spec_locked=True, auto_reset=False).check == "all"
    with pytest.raises(OptionError) as caught:
        Env(**options)
    assert text in str(caught.value)


def test_private_names_say_that_the_env_is_of_another_library() -> None:
    with pytest.raises(TypeError, match=r"give env.as_torchrl\(\)"):
        _ = GymEnv("CartPole-v1")._has_dynamic_specs
    with pytest.raises(AttributeError, match="no attribute '_nothing'"):
        _ = GymEnv("CartPole-v1")._nothing
    assert not hasattr(GymEnv("CartPole-v1"), "parameters")
    assert torch.Size([]) == GymEnv("CartPole-v1").shape
