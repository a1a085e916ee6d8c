"""The ring of a storage's columns: which are written, by which process, and which can be read."""
