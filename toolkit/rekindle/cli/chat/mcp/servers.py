"""MCP servers of a chat, from its start to its end."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Final

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from rekindle.cli.chat.mcp.config import ServerConfig
from rekindle.cli.chat.mcp.permission import AskedTools, Permission
from rekindle.cli.chat.mcp.visible import visible
from rekindle.core.concurrency.waits import blocked
from rekindle.core.errors import ConfigError, not_installed
from rekindle.core.words import quantity
from rekindle.tools.mcp.clients import ClientTools
from rekindle.tools.mcp.home import Home

LAST_WORDS: Final = 500
"""The most characters of a server's standard error in an error."""


class Servers:
    """Running servers, in an event loop of another thread. A context: its end stops them.

    Args:
        configs: the servers.
        limit: the longest time of a start and of a call, in seconds.
        permission: the permission for calls.
        note: writes a line for the person.

    Attributes:
        sources: the tools of each server, already listed.
    """

    def __init__(
        self, configs: Sequence[ServerConfig], limit: float, permission: Permission, note: Callable[[str], None]
    ):
        self._configs, self._limit, self._permission, self._note = configs, limit, permission, note
        self._stack = ExitStack()
        self.sources: list[AskedTools] = []

    def __enter__(self) -> "Servers":
        """Start the servers, one after another.

        Raises:
            ConfigError: the package `mcp` is not installed, or a server does not start.
        """
        if not self._configs:
            return self
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise not_installed("MCP", "mcp", error) from error
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            for config in self._configs:
                self.sources.append(self._start(config, stack, portal))
            count = sum(len(source.tools or ()) for source in self.sources)
            self._note(f"{quantity(count, 'tool')} of {quantity(len(self.sources), 'MCP server')}; /tools lists them")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the servers."""
        self._stack.close()

    def _start(self, config: ServerConfig, stack: ExitStack, portal: BlockingPortal) -> AskedTools:
        self._note(f"starting the MCP server {config.name} …")
        log = stack.enter_context(_log())
        changed = _Flag()
        try:
            limit = config.limit or self._limit
            connection = portal.wrap_async_context_manager(_connection(config, limit, log, changed))
            client = connection.__enter__()
            stack.callback(connection.__exit__, None, None, None)  # without the errors of the chat
            tools = ClientTools(client, portal.call(Home.here, config.name), config.name, limit, changed.take)
            source = AskedTools(tools, self._permission)
            blocked(source.wait_listed())
        except (Exception, BaseExceptionGroup) as error:
            raise ConfigError(
                f"the MCP server {config.name} did not start: {visible(_reason(error))}{_tail(log)}"
            ) from error
        return source


class _Flag:
    """Mark of a changed list of tools, set by the server."""

    def __init__(self) -> None:
        self._is_set = False

    async def hear(self, message: Any) -> None:
        """Take a message of the server."""
        content = getattr(message, "root", message)
        if getattr(content, "method", "") == "notifications/tools/list_changed":
            self._is_set = True
        await anyio.lowlevel.checkpoint()

    def take(self) -> bool:
        """Return True after a change since the last call."""
        is_set, self._is_set = self._is_set, False
        return is_set


def _log() -> IO[str]:
    """Return a file for the standard error of a server, in place of the terminal."""
    return TemporaryFile("w+", encoding="utf-8", errors="replace")


@asynccontextmanager
async def _connection(config: ServerConfig, limit: float, log: IO[str], changed: _Flag) -> AsyncIterator[Any]:
    """Connect to a server, and yield its initialized client. Errors at its end are ignored."""
    from mcp import ClientSession

    has_started = False
    try:
        async with AsyncExitStack() as stack:
            reading, writing, *_ = await stack.enter_async_context(_transport(config, log))
            client: Any = await stack.enter_async_context(ClientSession(reading, writing, message_handler=changed.hear))
            with anyio.fail_after(limit):
                await client.initialize()
            has_started = True
            yield client
    except (Exception, BaseExceptionGroup):
        if not has_started:
            raise


def _transport(config: ServerConfig, log: IO[str]) -> Any:
    if config.is_sse:
        from mcp.client.sse import sse_client

        return sse_client(config.url, headers=None if config.headers is None else dict(config.headers))
    if config.url:
        return _http_transport(config)
    from mcp import StdioServerParameters, stdio_client

    program, *arguments = config.command
    env = None if config.env is None else dict(config.env)
    parameters = StdioServerParameters(command=program, args=arguments, env=env, cwd=config.cwd)
    return stdio_client(parameters, errlog=log)


@asynccontextmanager
async def _http_transport(config: ServerConfig) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client  # httpx or httpx2, by the version of mcp

    headers = None if config.headers is None else dict(config.headers)
    async with (
        create_mcp_http_client(headers=headers) as http_client,
        streamable_http_client(config.url, http_client=http_client) as streams,
    ):
        yield streams


def _reason(error: BaseException) -> str:
    """Return the message of an error, or of the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it did not answer in time (--tool-timeout)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _tail(log: IO[str]) -> str:
    """Return the end of a server's standard error, for an error message."""
    log.seek(0, os.SEEK_SET)
    words = visible(log.read()[-LAST_WORDS:].strip())
    return f". Its last words:\n{words}" if words else ""
