"""Replicas: engines in Ray actors, used by a session as its lanes; they can outlive the session."""
