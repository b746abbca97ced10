"""Facts about a session as cards: settings, parameters, counters, what a restart brought back."""
