"""The command `cache`: inspect and maintain the cache directory."""
