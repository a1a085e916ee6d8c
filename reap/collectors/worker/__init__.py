"""What a worker of a collector does, here or in another process."""
