"""From what was recorded to what the user gets."""
