"""Routing of requests to the lanes of an engine: pure host logic, without a clock, a device or I/O."""
