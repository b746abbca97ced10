"""Scheduling of requests: pure host logic, without jax, a clock or I/O."""
