"""Objects that a receiver of weights gets: the descriptors of its mailbox, and a wakeup."""
