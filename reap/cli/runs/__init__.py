"""A run of `reap collect` in its folder: the files written during the run, at its end, and when it is resumed."""
