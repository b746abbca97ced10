"""All that generates tokens: requests come in, tokens go out. It imports nothing of Rekindle outside itself."""
