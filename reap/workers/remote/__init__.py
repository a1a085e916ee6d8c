"""Workers that share nothing with this process: what all engines need."""
