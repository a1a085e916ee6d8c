"""Values under `"next"`: stored, or rebuilt from the following frame."""
