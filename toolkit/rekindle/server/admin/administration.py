"""Endpoints for administrators, with a key of their own: pauses, sleep, weights and adapters."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rekindle.core.errors import ConfigError, HostRefused, ModelError, ModelNotFound, RekindleError
from rekindle.server.common.errors import ApiError, invalid_field
from rekindle.server.common.fields import Fields, parse_body
from rekindle.server.http.access import Access
from rekindle.server.http.endpoint import check_type
from rekindle.server.http.exchange import Service
from rekindle.server.http.guards import has_key, reply
from rekindle.server.http.query import Query, reads
from rekindle.server.http.reading import read_body
from rekindle.server.models.served import ModelCard, card_of, only_base

Handler = Callable[[Request], Awaitable[Response]]
MODEL: Final = Query("model")
PAUSE_MODE: Final = Query("mode", ("abort", "wait"), "abort")
SLEEP_LEVEL: Final = Query("level", ("1", "2"), "1")
IN_FLIGHT: Final = {"abort": "fail", "wait": "finish", "keep": "keep"}
"""Treatment of running requests, as in `Session.sleep`, for each of vLLM's modes."""
SLEEP_MODE: Final = Query("mode", tuple(IN_FLIGHT), "abort")


class Administration:
    """Endpoints for administrators, in the forms of vLLM and SGLang. Without keys, each is refused.

    Args:
        service: the server's models and rules.
        access: the clients of the server. The key of a client does not suffice: the routes read files of the server,
            and replace the weights of all clients.
    """

    def __init__(self, service: Service, access: Access):
        self._models, self._gate, self._limits = service.models, service.gate, service.limits
        self._keys = [key.encode() for key in access.admin_keys]

    @property
    def routes(self) -> list[Route]:
        """The routes."""
        posts: dict[str, Handler] = {
            "/pause": self._pause,
            "/resume": self._resume,
            "/sleep": self._sleep,
            "/wake_up": self._wake_up,
            "/update_weights": self._update_weights,
            "/update_weights_from_disk": self._update_weights,
            "/v1/load_lora_adapter": self._load_adapter,
            "/v1/unload_lora_adapter": self._unload_adapter,
        }
        gets: dict[str, Handler] = {"/is_paused": self._is_paused, "/is_sleeping": self._is_sleeping}
        return [
            Route(path, self._guarded(handler), methods=[method])
            for method, handlers in (("POST", posts), ("GET", gets))
            for path, handler in handlers.items()
        ]

    def _guarded(self, handler: Handler) -> Handler:
        """Return a handler that refuses clients without a key of an administrator."""

        @wraps(handler)
        async def answer(request: Request) -> Response:
            if not self._keys:
                message = f"{request.url.path} is for administrators: start the server with --admin-key or admin_keys="
                raise ApiError(HTTPStatus.FORBIDDEN, message)
            if not has_key(request.scope, self._keys):
                message = "give a key of an administrator (--admin-key), as 'Authorization: Bearer KEY'"
                raise ApiError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key")
            try:
                return await handler(request)
            except ModelNotFound as error:
                raise ApiError(HTTPStatus.NOT_FOUND, str(error)) from error
            except (ModelError, ConfigError, HostRefused) as error:  # an administrator may see paths
                raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from error

        return answer

    @reads(PAUSE_MODE, MODEL)
    async def _pause(self, request: Request) -> Response:
        """Serve POST /pause: later requests wait, and running ones are cancelled or end first."""
        mode, bases = PAUSE_MODE.choice(request), await self._bases(request)
        self._gate.close(bases)
        models = [model for model in self._models.open_models() if model.base in bases]
        handles = [each for model in models for each in model.session.requests.values()]
        for handle in handles:
            if mode == "abort":
                handle.cancel()
        for handle in handles:
            with suppress(RekindleError):
                await handle
        return reply({"status": "paused"})

    @reads(MODEL)
    async def _resume(self, request: Request) -> Response:
        """Serve POST /resume: the end of a pause."""
        self._gate.open(await self._bases(request))
        return reply({"status": "resumed"})

    @reads(MODEL)
    async def _is_paused(self, request: Request) -> Response:
        """Serve GET /is_paused: whether later requests wait."""
        bases = await self._bases(request)
        return reply(_by_model("is_paused", {base: self._gate.is_closed(base) for base in bases}))

    @reads(SLEEP_MODE, SLEEP_LEVEL, MODEL)
    async def _sleep(self, request: Request) -> Response:
        """Serve POST /sleep: no weights on the device, at either of vLLM's levels, until wake_up."""
        in_flight = IN_FLIGHT[SLEEP_MODE.choice(request)]
        SLEEP_LEVEL.choice(request)
        for base in await self._bases(request):
            async with self._models.use_open(base) as model:
                if model is not None:
                    await model.session.sleep(in_flight=in_flight)
        return reply({"status": "asleep"})

    @reads(MODEL)
    async def _wake_up(self, request: Request) -> Response:
        """Serve POST /wake_up: the weights from their files again."""
        for base in await self._bases(request):
            async with self._models.use_open(base) as model:
                if model is not None:
                    await model.session.wake()
        return reply({"status": "awake"})

    @reads(MODEL)
    async def _is_sleeping(self, request: Request) -> Response:
        """Serve GET /is_sleeping: whether the device has no weights; false for a closed model."""
        asleep = {model.base: model.session.asleep for model in self._models.open_models()}
        bases = await self._bases(request)
        return reply(_by_model("is_sleeping", {base: asleep.get(base, False) for base in bases}))

    @reads(MODEL)
    async def _update_weights(self, request: Request) -> Response:
        """Serve POST /update_weights: weights from a directory, a file or the hub, by name as for `open`."""
        body = await self._body(request)
        path, in_flight = _text(body, "model_path"), body.take("in_flight", str) or "finish"
        base = self._base(request, body.take("model", str))
        body.finish({})
        async with self._models.use(base) as model:
            await model.session.update_weights(path, in_flight=in_flight)
            version = model.session.weights_version
        return reply({"success": True, "message": f"the weights are those of {path}", "weights_version": version})

    @reads(MODEL)
    async def _load_adapter(self, request: Request) -> Response:
        """Serve POST /v1/load_lora_adapter: an adapter from its directory."""
        body = await self._body(request)
        name, path, replaces = _text(body, "lora_name"), _text(body, "lora_path"), body.flag("load_inplace")
        base = self._base(request, body.take("base_model_name", str) or body.take("model", str))
        body.finish({"is_3d_lora_weight": (False,)})
        async with self._models.use(base) as model:
            for card in self._models.cards():
                if card.name == name:
                    _check_replaced(card, base, replaces=replaces)
            await model.session.add_adapter(name, path)
            self._models.note_adapter(base, name, path)
        return PlainTextResponse(f"Success: the adapter {name!r} is loaded.")

    async def _unload_adapter(self, request: Request) -> Response:
        """Serve POST /v1/unload_lora_adapter: no later requests with an adapter."""
        body = await self._body(request)
        name = _text(body, "lora_name")
        body.finish({}, ("lora_int_id", "model"))
        card = card_of(self._models.cards(), name)
        if not card.is_adapter:
            raise invalid_field("lora_name", f"lora_name must be an adapter, got the model {name!r}")
        async with self._models.use_open(card.base) as model:
            if model is not None:
                await model.session.remove_adapter(name)
            self._models.note_adapter(card.base, name, None)
        return PlainTextResponse(f"Success: the adapter {name!r} is unloaded.")

    async def _bases(self, request: Request) -> Sequence[str]:
        """Return the model in the query, or in the body if there is one, or else all models."""
        name = request.query_params.get("model")
        if body := await read_body(request, self._limits):
            fields = parse_body(body)
            name = fields.take("model", str) or name
            fields.finish({})
        return self._models.bases if name is None else [self._models.base_of(name)]

    def _base(self, request: Request, name: str | None) -> str:
        """Return the model named by a field of the body or by the query, or else the only one; raise ApiError."""
        name = request.query_params.get("model") if name is None else name
        return only_base(self._models) if name is None else self._models.base_of(name)

    async def _body(self, request: Request) -> Fields:
        check_type(request)
        return parse_body(await read_body(request, self._limits))


def _check_replaced(card: ModelCard, base: str, *, replaces: bool) -> None:
    """Raise if the name of a card is not free for an adapter of a model; one of its adapters may be replaced."""
    if card.base != base:
        raise invalid_field("lora_name", f"{card.name!r} is a name of another model; give the adapter another")
    if not card.is_adapter:
        raise invalid_field("lora_name", f"{card.name!r} is the model's name; give the adapter another")
    if not replaces:
        message = f"the adapter {card.name!r} is loaded already; load_inplace=true replaces it"
        raise invalid_field("lora_name", message)


def _by_model(name: str, states: Mapping[str, bool]) -> dict[str, Any]:
    """Return the common state of all models, true if all are in it, and for several models the state of each."""
    whole = {name: all(states.values())}
    return {**whole, "models": dict(states)} if len(states) > 1 else whole


def _text(body: Fields, name: str) -> str:
    """Take a required text."""
    text = body.take(name, str)
    if not text:
        body.refuse_missing(name)
    return text
