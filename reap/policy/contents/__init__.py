"""The parts of a policy: its weights, copies of it, and the devices that it is on."""
