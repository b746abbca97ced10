"""What you hold: a session, its requests, its prefixes."""
