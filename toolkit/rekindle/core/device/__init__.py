"""The work of a device in one tick, as pure functions, and the host's side of it."""
