"""Chooses the actor of a policy, once, at construction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase
from tensordict.nn.probabilistic import interaction_type, set_interaction_type
from torch import nn

from reap.errors import SpecMismatch
from reap.keys import Key
from reap.policy.actors.plain import PlainActor, argument_keys, match_arguments, name_of, optional_arguments
from reap.policy.actors.ragged import RaggedActor, object_inputs, reads_objects
from reap.policy.actors.states import add_shown_states, add_states, check_states, missing_states, no_initial_state, read_keys
from reap.policy.actors.through_tensordict import TensorDictActor
from reap.policy.actors.unwrapped import Plan, UnwrappedActor, unwrap
from reap.policy.base import Outputs, OutputWriter, PolicyActor, RetainedInputs, StrictWriter
from reap.policy.contents.held import Held, held_by
from reap.policy.probe import explained, output_fields
from reap.policy.trial import Trial
from reap.recording.buffers import FLAGS, Stage
from reap.recording.layout import Field
from reap.specs import Composite, MultiOneHot, OneHot
from reap.specs.fits import Check


@dataclass(frozen=True)
class Writing:
    """How outputs of a policy are written.

    Attributes:
        actions: specs of the env's actions.
        check: how closely outputs are compared with those of the first call.
        as_given: whether one-hot actions are stored in the policy's dtype.
    """

    actions: Composite
    check: Check
    as_given: bool

    def writer(self, first: Outputs, outputs: Mapping[Key, Field], stage: Stage, where: str) -> OutputWriter:
        """The writer for outputs in the form of those of the first call."""
        if self.check == "first":
            return OutputWriter(outputs)
        one_hot = [key for key, spec in self.actions.leaves() if isinstance(spec, OneHot | MultiOneHot)]
        whole = [key for key, _ in self.actions.leaves() if not torch.as_tensor(first[key]).is_floating_point()]
        return StrictWriter(outputs, stage.batch_shape, one_hot, where, whole)


def choose_actor(
    given: Callable[..., Any] | Held,
    actions: Composite,
    stage: Stage,
    *,
    trust: bool = False,
    interaction: InteractionType | None = None,
    called: Callable[..., Any] | None = None,
    check: Check = "types",
    device: torch.device | None = None,
    as_given: bool = False,
) -> tuple[PolicyActor, RetainedInputs | None]:
    """The actor for a policy, after a call of the policy on the stage.

    Modules of tensordict and torchrl that can be unwrapped, and torchrl's `RandomPolicy`, are called a second time, by their
    parts. If all outputs and the final random state are equal, bit for bit, the parts are used from then on.

    Args:
        given: the policy, a module or function, or the result of `held_by` for it.
        actions: specs of the env's actions.
        stage: the policy's inputs, with the env's first observations in it; extended by `is_init` where the policy
            reads it.
        trust: call the policy with a TensorDict whatever it looks like.
        called: called instead of the policy, which then only provides its arguments: its compiled form, for example.
        device: the device of the TensorDict with which the policy is called.
        interaction: how probabilistic modules will choose; None for tensordict's current `interaction_type()`.
        check: how closely later outputs are compared with those of this call.
        as_given: whether one-hot actions are stored in the policy's dtype; otherwise in that of their specs.

    Returns:
        The actor, and a check for retained inputs (None: the policy gets copies already).

    Raises:
        OptionError: the policy has unknown arguments.
        SpecMismatch: its outputs do not fit the env.
    """
    held = held_by(given)
    policy: Any = held.policy
    chosen = interaction_type() if interaction is None else interaction
    writing = Writing(actions, check, as_given)
    target = policy if called is None else called
    with set_interaction_type(chosen):
        add_states(stage, policy, argument_keys(policy))
        if trust or takes_tensordict(policy):
            if missing_states(stage, policy):
                _find_states(held, target, stage, device)
            if reads_objects(policy, stage):
                objects = TensorDictActor(target, stage, device, object_inputs(stage, device))
                return _probe(objects, None, held, writing, stage)
            plan = unwrap(policy, stage, chosen, device) if called is None else None
            return _probe(TensorDictActor(target, stage, device), plan, held, writing, stage)
        action = next(key for key, _ in actions.leaves())
        if optional := optional_arguments(policy, _arguments(stage)):
            without = _by_arguments(target, stage, match_arguments(policy, _arguments(stage), stage.initial), action)
            add_shown_states(stage, optional, Trial(without.probe, held, stage).outputs)
        actor = _by_arguments(target, stage, match_arguments(policy, _arguments(stage), stage.initial), action)
        return _probe(actor, None, held, writing, stage)


def _by_arguments(policy: Callable[..., Any], stage: Stage, reads: Sequence[Key], action: Key) -> PolicyActor:
    has_objects = any(stage.fields[key].is_object for key in reads)
    return (RaggedActor if has_objects else PlainActor)(policy, stage, reads, action)


def _arguments(stage: Stage) -> list[Key]:
    """The keys after which arguments of a policy may be named: observations and states, not done flags."""
    return [key for key in stage.fields if key[-1:] not in FLAGS]


def _find_states(held: Held, called: Callable[..., Any], stage: Stage, device: torch.device | None) -> None:
    """Call the policy without its recurrent states, and derive their form from its outputs."""
    policy = held.policy
    where = f"policy {name_of(policy)}"
    actor = TensorDictActor(called, stage, device)
    try:
        outputs = Trial(actor.probe, held, stage).outputs
    except Exception as error:
        raise no_initial_state(missing_states(stage, policy), where) from error
    add_shown_states(stage, read_keys(policy), outputs)
    if missing := missing_states(stage, policy):
        raise no_initial_state(missing, where)


def _probe(
    actor: PolicyActor, plan: Plan | None, held: Held, writing: Writing, stage: Stage
) -> tuple[PolicyActor, RetainedInputs | None]:
    is_lazy = held.has_lazy()
    kept = RetainedInputs([stage.tensors[key] for key in actor.reads])
    where = f"policy {name_of(held.policy)}"
    with explained(held, stage, actor.reads, where):
        trial = Trial(actor.probe, held, stage)
    actor.enables_grad = trial.enables_grad
    outputs = output_fields(trial.outputs, writing.actions, stage, where, as_given=writing.as_given)
    check_states(stage, outputs, where)
    actor.fix_outputs(writing.writer(trial.outputs, outputs, stage, where))
    if plan is not None and is_lazy:  # the first call drew the parameters: its random state is another one
        trial = Trial(actor.probe, held, stage)
    is_plan_right = plan is not None and _agrees(plan, trial, held, stage)
    is_keeping = kept.found()
    del kept  # it holds the stage's tensors too, and would be counted by the one below
    if plan is not None and is_plan_right:
        actor = UnwrappedActor(plan, stage, actor)
    if is_keeping:
        actor.read_copies()
        return actor, None
    return actor, RetainedInputs([stage.tensors[key] for key in actor.reads])


def _agrees(plan: Plan, trial: Trial, held: Held, stage: Stage) -> bool:
    try:
        return trial.agrees(Trial(lambda: plan.outputs(stage), held, stage))
    except SpecMismatch:
        return False


def takes_tensordict(policy: Callable[..., Any]) -> bool:
    """Whether a policy is called with a TensorDict: by its class, or by its first argument's name or annotation."""
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
    if inspect.isclass(annotation) and issubclass(annotation, TensorDictBase):
        return True
    text = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    return "TensorDict" in text or (first.name in {"tensordict", "td"} and "Tensor" not in text)
