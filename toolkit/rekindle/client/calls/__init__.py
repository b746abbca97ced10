"""Options and prompts of calls, checked."""
