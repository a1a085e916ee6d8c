"""Checks of the values that envs return and policies choose."""
