"""Several processes that serve one session: this one leads, and the others follow its orders."""
