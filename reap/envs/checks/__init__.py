"""What is asked of the values that envs return and policies choose."""
