"""Device work of one tick as pure functions, and the host code around them."""
