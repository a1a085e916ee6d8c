"""Programs written for torchrl: which of their import lines name what `reap` has, and what they become."""
