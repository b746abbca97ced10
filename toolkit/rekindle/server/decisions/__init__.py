"""Decisions over HTTP: the answers to typed questions, in the forms of System One and of OpenAI."""
