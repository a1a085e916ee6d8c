"""The processes of an `AsyncVectorEnv`: errors that name those that died, and their end."""
