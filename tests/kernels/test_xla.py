"""The portable implementation holds to the reference."""

import pytest

from tests.kernels.suite import Suite


@pytest.mark.wide
class TestXla(Suite):
    implementation = "xla"
