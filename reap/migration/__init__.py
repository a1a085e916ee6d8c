"""Programs written for torchrl: which of their imports `reap` can serve, and how they change."""
