"""Facts about a `GymEnv` and gymnasium, and infos as observations."""
