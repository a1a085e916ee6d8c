"""`IdRows`: an env on TensorDicts, of any batch size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase

from reap.envs import EnvBase
from reap.specs import Composite, Unbounded
from reap.testing.envs import Id


class IdRows(EnvBase):
    """`Id` for each row of a batch, numbered from 0; `"_reset"` resets single rows.

    Args:
        batch_size: any shape; empty for a single env.

    Example:
        >>> env = IdRows((2, 3))
        >>> env.reset()["observation"].shape, env.rollout(4, break_when_any_done=False).batch_size
        (torch.Size([2, 3, 3]), torch.Size([2, 3, 4]))
    """

    def __init__(self, batch_size: Sequence[int] = ()) -> None:
        super().__init__(batch_size=batch_size)
        self.observation_spec = Composite(observation=Unbounded((*batch_size, 3)), shape=batch_size)
        self.action_spec = Unbounded((*batch_size, 1))
        self.add_truncated_keys()
        self.resets = [0] * self.batch_size.numel()
        self.seeds: list[int] = []
        self._steps = [0] * len(self.resets)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        rows = range(len(self.resets))
        if tensordict is not None and "_reset" in tensordict:
            rows = torch.nonzero(tensordict["_reset"].reshape(-1)).flatten().tolist()
        for b in rows:
            self.resets[b] += 1
            self._steps[b] = 0
        return self._tensordict(observation=self._observe())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict["action"].reshape(-1).tolist()
        rewards: list[float] = []
        ends: list[tuple[bool, bool]] = []
        for b, action in enumerate(actions):
            self._steps[b] += 1
            episode, step = self.resets[b] - 1, self._steps[b]
            rewards.append(Id.reward(b, episode, step, action))
            ends.append(Id.ending(b, episode) if step >= Id.length(b, episode) else (False, False))
        terminated, truncated = torch.tensor(ends).unbind(-1)
        return self._tensordict(
            observation=self._observe(),
            reward=torch.tensor(rewards),
            terminated=terminated,
            truncated=truncated,
            done=terminated | truncated,
        )

    def _set_seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def _observe(self) -> torch.Tensor:
        return torch.tensor([[b, self.resets[b] - 1, self._steps[b]] for b in range(len(self.resets))], dtype=torch.float32)

    def _tensordict(self, **values: torch.Tensor) -> TensorDict:
        shaped = {key: value.reshape(*self.batch_size, -1) for key, value in values.items()}
        return TensorDict(shaped, self.batch_size)
