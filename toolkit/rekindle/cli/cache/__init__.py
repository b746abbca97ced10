"""The command `cache`: what lies in the cache directory, and looking after it."""
