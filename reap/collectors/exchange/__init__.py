"""How workers get slots and weights, and how their rollouts come back."""
