"""Sources of tools: MCP servers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rekindle.core.concurrency.waits import Waits
from rekindle.tools.tool import Tool


class ToolSource(ABC):
    """Source of tools.

    Attributes:
        name: the name of the source, for errors.
        tools: its tools; None until it was asked.
    """

    name: str
    tools: Sequence[Tool] | None

    @abstractmethod
    def wait_listed(self) -> Waits[Sequence[Tool]]:
        """Return the tools, and ask the source at the first call.

        Raises:
            InvalidRequest: the source does not answer.
        """
