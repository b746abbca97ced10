"""Progress of openings, downloads and batches: bars in notebooks and terminals, lines in logs."""
