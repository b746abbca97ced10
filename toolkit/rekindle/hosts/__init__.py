"""Sessions over several processes: one process leads, and the others follow its orders."""
