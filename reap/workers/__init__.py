"""The seam between a collector and what works for it; knows nothing of reinforcement learning."""
