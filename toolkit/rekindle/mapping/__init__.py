"""Maps: thousands of prompts in one call, a window at a time, with a file of answers for restarts."""
