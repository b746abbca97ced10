"""Rollouts of tunix, Google's library for reinforcement learning in JAX, over a session."""
