"""What a device does in one tick, in pure functions, and the host's side of it."""
