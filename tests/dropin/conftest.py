"""The programs are run, not imported: their imports cost seconds."""

collect_ignore = ["programs"]
