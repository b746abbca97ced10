"""The engine, from requests to tokens. It imports nothing of Rekindle outside this package."""
