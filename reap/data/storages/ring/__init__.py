"""Which columns of a storage are written, by whom, and which can be read."""
