"""Exploration types: how a probabilistic policy chooses actions; tensordict's interaction types under older names."""

from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type as exploration_type
from tensordict.nn.probabilistic import set_interaction_type as set_exploration_type

__all__ = ["ExplorationType", "exploration_type", "set_exploration_type"]
