"""Aspects of one request: its place in the queue, its rope, its mask, its observed positions, copies of its state."""
