"""The native kernels hold to the reference."""

from tests.kernels.suite import Suite


class TestCpu(Suite):
    implementation = "cpu"
