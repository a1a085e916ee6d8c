"""What collectors can be told."""
