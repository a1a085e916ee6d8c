"""Envs by the library they come from."""
