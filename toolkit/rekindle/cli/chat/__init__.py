"""The command `chat`: lines of a terminal, a conversation, and commands about it."""
