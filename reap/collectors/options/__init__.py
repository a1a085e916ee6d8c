"""Options of collectors."""
