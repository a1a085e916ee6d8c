"""Workers in child processes on this machine."""
