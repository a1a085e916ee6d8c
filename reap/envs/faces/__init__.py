"""The two faces of an env, each derived from the other: TensorDicts and arrays."""
