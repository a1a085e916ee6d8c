"""In which order workers record rollouts, and in which order these become batches."""
