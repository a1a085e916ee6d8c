"""A collector's worker, in this process or in another."""
