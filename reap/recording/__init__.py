"""The memory of frames: layouts, blocks, slots and their pool, trajectories."""
