"""The endpoints of each API: functions from an exchange to its answer."""
