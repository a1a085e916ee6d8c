"""A run of `reap collect` in its folder: what is written while it lasts, at its end, and when it is resumed."""
