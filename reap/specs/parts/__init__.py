"""What all specs share: changes of shape, values made for a spec, changes to a `Composite`, and torchrl's classes."""
