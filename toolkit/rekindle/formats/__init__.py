"""Formats of others: model families, files of models, chat templates, tool calls."""
