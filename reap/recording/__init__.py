"""Where frames lie: layouts, blocks, slots and their pool, trajectories."""
