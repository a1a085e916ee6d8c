"""What a `GymEnv` says of itself and of gymnasium, and the infos that it makes observations of."""
