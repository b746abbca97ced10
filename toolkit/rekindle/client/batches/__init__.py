"""Several requests as one call, and how far they are."""
