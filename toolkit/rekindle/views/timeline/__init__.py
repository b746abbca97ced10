"""What became of each request, tick by tick, and its pictures."""
