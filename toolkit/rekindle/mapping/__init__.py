"""Maps: thousands of prompts in one call, a window at a time, with answers in a file for restarts."""
