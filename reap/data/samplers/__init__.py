"""Which frames of a buffer a sample holds."""
