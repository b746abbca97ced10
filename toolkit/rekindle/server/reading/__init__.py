"""Pure functions from a JSON body to a call of the session."""
