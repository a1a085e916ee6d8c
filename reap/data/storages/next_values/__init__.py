"""Values under `"next"`: stored, or rebuilt from the frame after."""
