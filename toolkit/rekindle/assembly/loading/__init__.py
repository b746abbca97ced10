"""The parts of an engine before it runs: budget, blueprint, stores, and the filling of the device."""
