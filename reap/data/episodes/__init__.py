"""Episodes in a buffer: which of its frames follow each other."""
