"""The workers that record a collector's rollouts, in this process or elsewhere."""
