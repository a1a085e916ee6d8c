"""How a buffer is saved, and goes on from what was saved."""
