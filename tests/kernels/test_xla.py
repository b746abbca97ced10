"""The portable implementation holds to the reference."""

from tests.kernels.suite import Suite


class TestXla(Suite):
    implementation = "xla"
