"""Records a policy through its actor, and calls a copy of it on the same inputs without reap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor

from reap.keys import Key, as_key
from reap.policy.base import PolicyActor, RetainedInputs
from reap.policy.choose import choose_actor
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field
from reap.specs import Composite, Spec, Unbounded

RANDOM = InteractionType.RANDOM
OBSERVATION: Mapping[Key, Field] = {("observation",): Field((4,), torch.float32)}
COLUMNS = 5


def inputs_of(stage: Stage, t: int) -> dict[Key, Tensor]:
    """The inputs of column `t`: other numbers under each key and in each column."""
    found: dict[Key, Tensor] = {}
    for i, (key, tensor) in enumerate(stage.tensors.items()):
        values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(100 * t + i))
        found[key] = values > 0 if tensor.dtype is torch.bool else values.to(tensor.dtype)
    return found


def unbounded(batch: tuple[int, ...], like: Tensor) -> Spec:
    return Unbounded(shape=like.shape, dtype=like.dtype)


@dataclass
class Recording:
    """An actor, its stage, and rollouts that it writes."""

    policy: Any
    fields: Mapping[Key, Field] = field(default_factory=lambda: OBSERVATION)
    batch: tuple[int, ...] = (3,)
    interaction: InteractionType | None = RANDOM
    stage: Stage = field(init=False)
    actor: PolicyActor = field(init=False)
    kept: RetainedInputs | None = field(init=False)

    def __post_init__(self) -> None:
        self.stage = Stage(self.fields, self.batch)
        self.fill_stage(0)
        with set_interaction_type(self.interaction):
            given = nested_inputs({**inputs_of(self.stage, 0), **is_init(self.policy, self.batch)}, self.batch)
            action = called(deepcopy(self.policy), given)["action"]
        actions = Composite({"action": unbounded(self.batch, action)}, shape=self.batch)
        torch.manual_seed(1)
        self.actor, self.kept = choose_actor(self.policy, actions, self.stage, interaction=self.interaction)

    def fill_stage(self, t: int) -> None:
        for key, value in inputs_of(self.stage, t).items():
            self.stage.tensors[key].copy_(value)

    def rollout_input(self) -> TensorDict:
        """The inputs of column 0."""
        return nested_inputs(inputs_of(self.stage, 0), self.batch)

    def rollout(self, columns: int = COLUMNS) -> dict[Key, Tensor]:
        """What the actor writes, `[*batch, T, ...]` under each key."""
        slot = Slot(dict(self.actor.outputs), self.batch, columns)
        with torch.inference_mode(), set_interaction_type(self.interaction):
            self.actor.bind(slot)
            act = self.actor.act
            for t in range(columns):
                self.fill_stage(t)
                act(t)
        return {key: slot.tensor(key) for key in slot.fields}

    def expected(self, policy: Any, columns: int = COLUMNS) -> dict[Key, Tensor]:
        """What the policy itself adds to a TensorDict of the same inputs; zeros where it adds nothing."""
        rows: list[dict[Key, Tensor]] = []
        with torch.inference_mode(), set_interaction_type(self.interaction):
            for t in range(columns):
                td = called(policy, nested_inputs(inputs_of(self.stage, t), self.batch))
                leaves = {as_key(key): value.clone() for key, value in td.items(include_nested=True, leaves_only=True)}
                rows.append({key: value for key, value in leaves.items() if key not in self.stage.fields})
        samples = {key: value for row in rows for key, value in row.items()}
        dim = len(self.batch)
        return {key: torch.stack([row.get(key, torch.zeros_like(like)) for row in rows], dim) for key, like in samples.items()}


def nested_inputs(values: Mapping[Key, Tensor], batch: Sequence[int]) -> TensorDict:
    return TensorDict({key: value.clone() for key, value in values.items()}, batch_size=batch)


def is_init(policy: Any, batch: Sequence[int]) -> dict[Key, Tensor]:
    wanted = "is_init" in getattr(policy, "in_keys", ())
    return {("is_init",): torch.zeros(*batch, 1, dtype=torch.bool)} if wanted else {}


def called(policy: Callable[[TensorDict], Any], td: TensorDict) -> Any:
    with torch.no_grad():
        result = policy(td)
    return td if result is None else result


def check(policy: Any, kind: str, **options: Any) -> Recording:
    """Assert that the actor is of this kind and writes, bit for bit, what the policy itself gives from the same seed."""
    itself = deepcopy(policy)
    recording = Recording(policy, **options)
    assert recording.actor.kind == kind
    check_rollout(recording, itself)
    return recording


def check_rollout(recording: Recording, itself: Any) -> None:
    """Assert that the next rollout is what the policy itself gives."""
    torch.manual_seed(2)
    found = recording.rollout()
    after = torch.get_rng_state()
    torch.manual_seed(2)
    expected = recording.expected(itself)
    assert torch.equal(after, torch.get_rng_state())
    assert_same(found, expected)


def assert_same(found: Mapping[Key, Tensor], expected: Mapping[Key, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, equal_nan=True, msg=lambda m, k=key: f"{k}: {m}")
