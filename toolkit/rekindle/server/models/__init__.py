"""The models of a server: one session, or a pool of several."""
