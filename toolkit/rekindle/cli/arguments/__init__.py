"""The arguments of commands. No module here imports jax, so that help and wrong arguments come at once."""
