"""What runs next: pure host logic, without jax, a clock, or input and output."""
