"""Parts of every spec's face: other shapes of a spec, values made for it, changes to a `Composite`, and torchrl's classes."""
