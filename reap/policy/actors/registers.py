"""`Plan`: the computation of an unwrapped policy, as steps over registers.

The steps find their inputs in the registers and append their results to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from reap.keys import Key
from reap.policy.base import Outputs
from reap.recording.buffers import Stage

Registers = list[Any]
Step = Callable[[Registers], None]
"""Appends its results to the registers."""


class UnwrapError(Exception):
    """Raised if a policy cannot be unwrapped; the message says why."""


class Plan:
    """The steps of a policy; `StepPlan` and `DrawPlan` make them.

    Attributes:
        reads: keys of the tensors in the first registers.
        steps: to be run in this order on the registers.
        places: the register in which each key's last value is.
    """

    reads: list[Key]
    steps: list[Step]
    places: dict[Key, int]

    def run(self, inputs: Iterable[torch.Tensor]) -> Registers:
        """The registers after all steps; the first of them are the tensors under `reads`."""
        registers = list(inputs)
        for step in self.steps:
            step(registers)
        return registers

    def outputs(self, stage: Stage) -> Outputs:
        """Run the steps on the tensors of a stage; return the values under keys that the stage does not have."""
        registers = self.run(stage.tensors[key] for key in self.reads)
        return {key: registers[place] for key, place in self.places.items() if key not in stage.fields}

    def is_changed(self) -> bool:
        """Whether the policy has changed since the plan was made."""
        raise NotImplementedError
