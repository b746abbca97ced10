"""Connections, requests and streams, for any API."""
