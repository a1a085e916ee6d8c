"""Launchers start the processes of workers, on this machine or on others."""
