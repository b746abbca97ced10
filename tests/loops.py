"""Event loops of the tests in a folder whose subject is the device."""

from typing import Any

import pytest


@pytest.fixture(scope="module", params=["asyncio", pytest.param("trio", marks=pytest.mark.deep)])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Return the loop of the user: trio in `make test-deep` alone, as the engine has a loop of its own."""
    return request.param
