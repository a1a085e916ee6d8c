"""Ways to call a policy once per column."""
