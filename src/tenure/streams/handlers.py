"""The interface of stream handlers, the built-in handlers, and the discovery of other handlers.

A handler is created for each stream and processes its messages. The stream makes one call at a time, in order: `open`
once, `chunk` for every message, and `finish` once, however the stream ended. It does not call `finish` if `open` has
not returned, or if the handler ignores a cancellation. The handler sends results to the `Output` that it got in
`open`; these calls wait while the client is slow. A handler that raises in `open` or `chunk` ends its own stream with
`FAILED`. A handler that does not return delays only its own stream, unless it blocks the event loop. So run long
computations in a thread.

Applications register handlers with the entry point `tenure.stream_handlers`: a class that takes the settings in
`[streams] options` as keyword arguments. Creating a handler must be cheap, and must raise if an option is invalid:
Tenure creates a handler at startup to check the options.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Protocol, TypeAlias

from tenure.domain.sessions import Session
from tenure.errors import ConfigurationError

GROUP = "tenure.stream_handlers"

Message: TypeAlias = bytes | str


class Output(Protocol):
    """Sends to the client of the stream. Does nothing after the client has disconnected."""

    async def message(self, content: Message) -> None: ...

    async def partial(self, text: str) -> None:
        """Send a preliminary text, which a later partial or final text replaces."""

    async def final(self, text: str) -> None: ...

    async def error(self, code: str, message: str) -> None:
        """Report an error to the client. The stream continues."""


class StreamHandler(Protocol):
    async def open(self, session: Session, output: Output) -> None: ...

    async def chunk(self, message: Message) -> None: ...

    async def finish(self) -> None:
        """Send the remaining results, then return. No message follows."""


HandlerFactory: TypeAlias = Callable[[], StreamHandler]


class EchoHandler:
    """Sends every message back to the client."""

    _output: Output

    async def open(self, session: Session, output: Output) -> None:
        del session
        self._output = output

    async def chunk(self, message: Message) -> None:
        await self._output.message(message)

    async def finish(self) -> None:
        pass


class DiscardHandler:
    """Ignores every message."""

    async def open(self, session: Session, output: Output) -> None:
        pass

    async def chunk(self, message: Message) -> None:
        pass

    async def finish(self) -> None:
        pass


BUILT_IN: Mapping[str, Callable[..., StreamHandler]] = {"echo": EchoHandler, "discard": DiscardHandler}


def handler_factory(name: str, options: Mapping[str, str]) -> HandlerFactory:
    """Return a factory of handlers of this name with these options; raise `ConfigurationError` if they are invalid."""
    create = _find(name)

    def factory() -> StreamHandler:
        return create(**options)

    try:
        factory()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"streams.options: the handler {name} refuses these options: {error}") from error
    return factory


def _find(name: str) -> Callable[..., StreamHandler]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = sorted({*BUILT_IN, *found})
        raise ConfigurationError(f"streams.handler: must be one of {', '.join(known)}, not {name}")
    try:
        create: Callable[..., StreamHandler] = found[name].load()
    except Exception as error:
        raise ConfigurationError(f"streams.handler: {name} cannot be loaded: {error}") from error
    return create
