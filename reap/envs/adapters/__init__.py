"""Envs of other libraries as envs of reap, and envs of reap as theirs."""
