"""How weights reach the policies that act."""

from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase

__all__ = ["VanillaWeightUpdater", "WeightUpdaterBase"]
