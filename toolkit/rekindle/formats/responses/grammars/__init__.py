"""Grammars of answers with required tool calls, in llguidance's Lark syntax."""
