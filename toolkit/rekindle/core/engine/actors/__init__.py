"""One file an actor; the scheduler has a package of its own."""
