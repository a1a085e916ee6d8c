"""Actors: the only code that knows what a policy looks like."""
