"""Those who record the rollouts of a collector, in this process or elsewhere."""
