"""`UnwrappedActor`: a policy of TensorDict modules whose networks and distributions are called directly.

It replaces the `TensorDictActor` of the same policy, after a trial of both from the same random state has given
the same bits (`choose_actor`). The trial is valid only for the unchanged policy: at the start of each rollout the actor
checks whether the TensorDict modules are still the same, with the same attributes and networks and without hooks. As long
as they are not, the `TensorDictActor` is used. A change during a rollout takes effect with the next one.
torchrl's `RandomPolicy` is unwrapped in the same way (`DrawPlan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict.nn import InteractionType

from reap.keys import Key
from reap.policy.actors.registers import Plan, UnwrapError
from reap.policy.actors.spec_draws import DrawPlan, is_random_policy
from reap.policy.actors.steps import StepPlan, getter
from reap.policy.base import Outputs, OutputWriter, PolicyActor
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field

copy_all: Callable[..., Any] = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def unwrap(policy: Any, stage: Stage, interaction: InteractionType | None, device: torch.device | None = None) -> Plan | None:
    """The steps of a policy on the tensors of a stage; None if the policy itself must be called.

    Args:
        policy: any policy.
        stage: its inputs.
        interaction: how probabilistic modules choose; None for the default of each.
        device: the device of the TensorDict with which the policy would be called.
    """
    try:
        if is_random_policy(policy):
            return DrawPlan(policy) if device is None or device.type == "cpu" else None
        return StepPlan(policy, stage, interaction)
    except UnwrapError:
        return None


class UnwrappedActor:
    """Runs the steps of a plan and writes the outputs that the TensorDict modules would have written.

    Args:
        plan: the steps.
        stage: their inputs.
        fallback: the actor that calls the policy itself, with known outputs; it gets copies of the stage.
    """

    def __init__(self, plan: Plan, stage: Stage, fallback: PolicyActor) -> None:
        self.kind = "unwrapped"
        self.enables_grad = fallback.enables_grad
        self.reads: Sequence[Key] = tuple(plan.reads)
        self.outputs: Mapping[Key, Field] = {}
        self._plan = plan
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
        """Pass clones of the inputs to the policy."""
        inputs = self._inputs
        self._inputs = lambda: [value.clone() for value in inputs()]

    def bind(self, slot: Slot) -> None:
        """Bind the slot that later calls write to; use the fallback as long as the policy is changed."""
        if self._plan.is_changed():
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
