"""Replicas: engines in actors of Ray, which a session uses as its lanes, and which can outlive it."""
