"""Policies with predictable outputs, or with behaviour that policies should not have."""

from __future__ import annotations

import torch
from torch import nn


class Const(nn.Module):
    """Acts with its only parameter.

    Args:
        value: the action.
        size: numbers in an action.
    """

    def __init__(self, value: float = 0.0, size: int = 1) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((size,), float(value)))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """The parameter, for each row."""
        return self.w.expand(*observation.shape[:-1], -1)


class BN(nn.Module):
    """Acts through batch normalisation, whose statistics are buffers that change with each call in training mode.

    Args:
        size: numbers in an observation.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """The first normalised number of each row."""
        return self.norm(observation.view(-1, observation.shape[-1]))[:, :1].view(*observation.shape[:-1], 1)


class KeepInputs(nn.Module):
    """Acts with the previous observation, and keeps every observation that it is given in `kept`."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """The first number of the previous observation, or of this one if it is the first."""
        self.kept.append(observation)
        return self.kept[-2 if len(self.kept) > 1 else -1][..., :1]


class DictPolicy(nn.Module):
    """Returns several outputs: `action`, `log_prob` and, nested, `("info", "count")`."""

    def forward(self, observation: torch.Tensor) -> dict[str, object]:
        """Sums of the observation, scaled."""
        total = observation.sum(-1, keepdim=True)
        return {"action": total, "log_prob": -total.squeeze(-1), "info": {"count": (total * 2).to(torch.int64)}}


class MLPPolicy(nn.Module):
    """Two linear layers and a choice drawn from their softmax; an index, int64.

    Args:
        size: numbers in an observation.
        actions: number of actions.
        hidden: width of the hidden layer.
    """

    def __init__(self, size: int, actions: int = 3, hidden: int = 11) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, actions))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """An action for each row, from torch's generator."""
        return torch.distributions.Categorical(logits=self.net(observation), validate_args=False).sample()
