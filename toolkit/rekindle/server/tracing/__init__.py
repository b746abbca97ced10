"""Traces of requests, in the log and in OpenTelemetry."""
