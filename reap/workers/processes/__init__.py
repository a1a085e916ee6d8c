"""Workers in child processes of this machine."""
