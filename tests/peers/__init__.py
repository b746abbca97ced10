"""The server tests of other projects, run against a server of ours: `python -m tests.peers --help`."""
