"""`ParallelEnv`: envs in processes."""
