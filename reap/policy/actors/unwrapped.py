"""`UnwrappedActor`: a policy of TensorDict modules whose networks and distributions are called directly.

It replaces the `TensorDictActor` of the same policy, after a trial of both from the same random state has given
the same bits (`choose_actor`). That trial holds for the policy as it was: at the start of each rollout the actor looks
whether the TensorDict modules are still the same ones, with the same attributes and networks and without hooks. As long
as they are not, the `TensorDictActor` does the work. A change in the middle of a rollout counts from the next one on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
from tensordict.nn import InteractionType, TensorDictSequential
from torch import nn

from reap.keys import Key
from reap.policy.actors.steps import HOOKS, StepPlan, UnwrapError, getter
from reap.policy.base import Outputs, OutputWriter, PolicyActor
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field

copy_all: Callable[..., Any] = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def unwrap(policy: Any, stage: Stage, interaction: InteractionType | None) -> StepPlan | None:
    """The steps of a policy on the tensors of a stage; None if it must be called as it is.

    Args:
        policy: any policy.
        stage: its inputs.
        interaction: how probabilistic modules choose; None for the default of each.
    """
    try:
        return StepPlan(policy, stage.fields, interaction)
    except UnwrapError:
        return None


class UnwrappedActor:
    """Runs the steps of a plan and writes the outputs that the TensorDict modules would have written.

    Args:
        plan: the steps.
        stage: their inputs.
        fallback: the actor that calls the policy itself, its outputs fixed; it is given copies of the stage.
    """

    def __init__(self, plan: StepPlan, stage: Stage, fallback: PolicyActor) -> None:
        self.kind = "unwrapped"
        self.enables_grad = fallback.enables_grad
        self.reads: Sequence[Key] = tuple(plan.reads)
        self.outputs: Mapping[Key, Field] = {}
        self._plan = plan
        self._changes = ModuleChanges(plan.parts)
        self._steps = tuple(plan.steps)
        inputs = [stage.tensors[key] for key in plan.reads]
        self._inputs: Callable[[], list[Any]] = inputs.copy
        self.writer = fallback.writer
        self._results: Callable[[list[Any]], Sequence[torch.Tensor]] = tuple
        self._views: list[Sequence[torch.Tensor]] = []
        self._fallback = fallback
        self.act: Callable[[int], None] = self._act_plan
        fallback.read_copies()
        self.fix_outputs(fallback.writer)

    def probe(self) -> Outputs:
        """Run the steps once and return the outputs."""
        registers = self._plan.run(self._inputs())
        return {key: registers[self._plan.places[key]] for key in self.outputs}

    def fix_outputs(self, writer: OutputWriter) -> None:
        """Set the writer of the outputs."""
        self.outputs, self.writer = writer.outputs, writer
        self._forms = writer.forms
        self._results = getter([self._plan.places[key] for key in writer.keys])

    def read_copies(self) -> None:
        """Hand over clones of the inputs."""
        inputs = self._inputs
        self._inputs = lambda: [value.clone() for value in inputs()]

    def bind(self, slot: Slot) -> None:
        """Take the slot that following calls write; leave it to the policy itself as long as that is changed."""
        if self._changes.found():
            self._fallback.bind(slot)
            self.kind, self.act = self._fallback.kind, self._fallback.act
        else:
            self.writer.bind(slot)
            self._views = self.writer.views
            self.kind, self.act = "unwrapped", self._act_plan

    def _act_plan(self, t: int) -> None:
        registers = self._inputs()
        for step in self._steps:
            step(registers)
        results = self._results(registers)
        for result, (shape, dtype) in zip(results, self._forms, strict=False):
            if type(result) is not torch.Tensor or result.dtype is not dtype or result.shape != shape:
                self.writer.write(t, dict(zip(self.writer.keys, results, strict=True)))
                return
        copy_all([views[t] for views in self._views], results)


class ModuleChanges:
    """Detects changes of TensorDict modules."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._hooks = [getattr(module, hooks) for module in modules for hooks in HOOKS]
        self._attributes = [vars(module) for module in modules]
        # Going from train to eval mode changes nothing in them; their networks take care of it.
        self._getters = [itemgetter(*(name for name in vars(module) if name != "training")) for module in modules]
        sequences = [module.module for module in modules if isinstance(module, TensorDictSequential)]
        self._children = [vars(module)["_modules"] for module in (*modules, *sequences)]
        self._before = self._state()

    def found(self) -> bool:
        """Whether an attribute, a network or a module of a sequence is another one, or there is a hook."""
        if any(self._hooks) or nn.modules.module._has_any_global_hook():  # pyright: ignore[reportPrivateUsage]
            return True
        try:
            now = self._state()
        except KeyError:  # an attribute was deleted
            return True
        return len(now) != len(self._before) or not all(map(is_, now, self._before))

    def _state(self) -> list[Any]:
        values = chain.from_iterable(get(own) for get, own in zip(self._getters, self._attributes, strict=True))
        children = chain.from_iterable(modules.values() for modules in self._children)
        return [*map(len, self._attributes), *values, *children]
