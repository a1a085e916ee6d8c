"""Envs of PettingZoo: several agents, in groups whose values are stacked."""
