"""How requests are given to the lanes of an engine: pure host logic, without a clock, a device or IO."""
