"""Constraints as grammars of llguidance: their bounds, their parser, changes of schemas."""
