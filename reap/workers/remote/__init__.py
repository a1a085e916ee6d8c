"""Workers that share nothing with this process: the parts common to all engines."""
