"""What a receiver of weights is handed: the descriptors of its mailbox, and what wakes it."""
