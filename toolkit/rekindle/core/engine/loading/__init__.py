"""The parts of an engine before it runs: budget, blueprint, stores, and what fills the device."""
