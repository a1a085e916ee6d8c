"""gymnasium's envs and vector envs."""
