"""Tools: functions for the model to call, their JSON schemas, and their execution."""
