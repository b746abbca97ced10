"""Pure functions from a session's results to the objects of OpenAI's API."""
