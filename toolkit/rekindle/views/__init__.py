"""Pictures of an engine's work and of its prefix cache."""
