"""What is done with the messages of a stream: the interface, the built-in handlers, and how others are found.

A handler is made for each stream and lives as long as it does. Its calls come one at a time and in order: `open` once,
`chunk` for every message, `finish` once, however the stream ended. Results go to the `Output` it was opened with, whose
calls wait while the client is slow. A handler that raises ends its own stream with `FAILED`; one that does not return
holds up its own stream only, as long as it does not block the event loop: what computes belongs in a thread.

Other handlers are found by entry point `tenure.stream_handlers`. Each is a class that takes the settings of
`[streams] options` by keyword. Making one must be cheap, and must fail if an option is wrong: it is tried at the start.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Protocol, TypeAlias

from tenure.errors import ConfigurationError
from tenure.model.sessions import Session

GROUP = "tenure.stream_handlers"

Message: TypeAlias = bytes | str


class Output(Protocol):
    """The way back to the client. After it is gone, what is sent goes nowhere."""

    async def message(self, content: Message) -> None: ...

    async def partial(self, text: str) -> None:
        """A text that may still change."""

    async def final(self, text: str) -> None: ...

    async def error(self, code: str, message: str) -> None:
        """Something the client should know; the stream goes on."""


class StreamHandler(Protocol):
    async def open(self, session: Session, output: Output) -> None: ...

    async def chunk(self, message: Message) -> None: ...

    async def finish(self) -> None:
        """No more will come. What is still to be said must be sent before this returns."""


HandlerFactory: TypeAlias = Callable[[], StreamHandler]


class EchoHandler:
    """Sends every message back."""

    _output: Output

    async def open(self, session: Session, output: Output) -> None:
        del session
        self._output = output

    async def chunk(self, message: Message) -> None:
        await self._output.message(message)

    async def finish(self) -> None:
        pass


class DiscardHandler:
    """Takes every message and says nothing."""

    async def open(self, session: Session, output: Output) -> None:
        pass

    async def chunk(self, message: Message) -> None:
        pass

    async def finish(self) -> None:
        pass


BUILT_IN: Mapping[str, Callable[..., StreamHandler]] = {"echo": EchoHandler, "discard": DiscardHandler}


def handler_factory(name: str, options: Mapping[str, str]) -> HandlerFactory:
    """Makes handlers of this name with these options; raises `ConfigurationError` if it cannot."""
    make = _find(name)

    def factory() -> StreamHandler:
        return make(**options)

    try:
        factory()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"streams.options: handler {name} does not take them: {error}") from error
    return factory


def _find(name: str) -> Callable[..., StreamHandler]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = sorted({*BUILT_IN, *found})
        raise ConfigurationError(f"streams.handler: must be one of {', '.join(known)}, not {name}")
    try:
        make: Callable[..., StreamHandler] = found[name].load()
    except Exception as error:
        raise ConfigurationError(f"streams.handler: {name} cannot be loaded: {error}") from error
    return make
