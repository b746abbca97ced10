"""Conversations as prompts, by chat templates of all kinds."""
