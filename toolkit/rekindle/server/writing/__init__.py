"""What a session gives, written in the form of OpenAI's API, in pure functions."""
