"""Client of the engine: options and prompts of calls, their requests, and the handles and records of requests."""
