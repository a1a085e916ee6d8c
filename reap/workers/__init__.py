"""Groups of workers, and the carriers that reach them; independent of reinforcement learning."""
