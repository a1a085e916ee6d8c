"""Which frames of a buffer follow each other."""
