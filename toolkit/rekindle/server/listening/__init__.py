"""The listening server: a thread, its sockets and its connections."""
