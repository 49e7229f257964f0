"""An output that records the messages of a stream."""

from typing import Any

from tenure.streams.handlers import Message


class Recorder:
    """Keeps the sent messages as (type, text), and errors with their code instead of a text."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def texts(self, kind: str) -> list[str]:
        return [text for sent, text in self.sent if sent == kind]

    async def message(self, content: Message) -> None:
        self.sent.append(("message", str(content)))

    async def partial(self, text: str) -> None:
        self.sent.append(("partial", text))

    async def final(self, text: str) -> None:
        self.sent.append(("final", text))

    async def error(self, code: str, message: str) -> None:
        del message
        self.sent.append(("error", code))


NO_SESSION: Any = None
"""The transcription handler does not use its session."""
