"""Which actor a policy gets; decided once, at construction."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from reap.buffers import IS_INIT, Stage
from reap.errors import OptionError
from reap.keys import as_key
from reap.layout import Field
from reap.policy.base import KeptInputs, PolicyActor
from reap.policy.plain import PlainActor, match_arguments
from reap.policy.probe import output_fields, untouched
from reap.policy.through_tensordict import TensorDictActor
from reap.specs import Composite


def choose_actor(
    policy: Callable[..., Any], actions: Composite, stage: Stage, *, trust: bool = False
) -> tuple[PolicyActor, KeptInputs | None]:
    """The actor for a policy, after one call of the policy on the stage.

    Args:
        policy: module or function.
        actions: specs of the env's actions.
        stage: the policy's inputs, with the env's first observations in it; extended by `is_init` where the policy reads it.
        trust: call the policy with a TensorDict whatever it looks like.

    Returns:
        The actor, and what tells later whether the policy keeps its inputs (None: it is given copies already).

    Raises:
        OptionError: the policy is not callable, or its arguments are not known.
        SpecMismatch: what it writes does not fit the env.
    """
    if not callable(policy):
        raise OptionError(f"policy: expected a module or a function, got {type(policy).__name__}: {policy!r}")
    if trust or takes_tensordict(policy):
        _extend(stage, policy)
        actor: PolicyActor = TensorDictActor(policy, stage)
    else:
        action = next(key for key, _ in actions.leaves())
        actor = PlainActor(policy, stage, match_arguments(policy, list(stage.fields)), action)
    return actor, _probe(actor, policy, actions, stage)


def _probe(actor: PolicyActor, policy: Callable[..., Any], actions: Composite, stage: Stage) -> KeptInputs | None:
    kept = KeptInputs(stage, actor.reads)
    where = f"policy {type(policy).__name__}"
    with untouched(policy if isinstance(policy, nn.Module) else None):
        outputs = actor.probe()
        actor.fix_outputs(output_fields(outputs, actions, stage, where))
    del outputs
    if not kept.found():
        return kept
    actor.read_copies()
    return None


def _extend(stage: Stage, policy: Any) -> None:
    wanted = {as_key(key) for key in getattr(policy, "in_keys", ())}
    if IS_INIT in wanted and IS_INIT not in stage.fields:
        stage.extend({IS_INIT: Field((1,), torch.bool)}, {IS_INIT: True})


def takes_tensordict(policy: Callable[..., Any]) -> bool:
    """Whether a policy is called with a TensorDict: by its class, or by the name or annotation of its first argument."""
    if isinstance(policy, TensorDictModuleBase):
        return True
    function = policy.forward if isinstance(policy, nn.Module) else policy
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    if not parameters:
        return False
    first = parameters[0]
    annotation = first.annotation
    if isinstance(annotation, str):
        return "TensorDict" in annotation
    if inspect.isclass(annotation) and issubclass(annotation, TensorDictBase):
        return True
    return first.name in {"tensordict", "td"}
