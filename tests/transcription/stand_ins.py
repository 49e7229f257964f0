"""Recognisers that hear ASCII: what is sent is what was said, and a full stop ends an utterance."""

import ctypes
import os
import time


class Letters:
    def __init__(self, *, model: str, grammar: str) -> None:
        del model, grammar
        self._heard = ""

    def accept(self, pcm: bytes) -> list[str]:
        *ended, self._heard = (self._heard + pcm.decode()).split(".")
        return ended

    def partial(self) -> str:
        return self._heard.strip()

    def finish(self) -> str:
        return self._heard.strip()


class Forgetful(Letters):
    def finish(self) -> str:
        return ""


class Chatty(Letters):
    def accept(self, pcm: bytes) -> list[str]:
        os.write(1, b"what a library has to say\n")
        return super().accept(pcm)


class Failing(Letters):
    def accept(self, pcm: bytes) -> list[str]:
        raise ValueError(f"{len(pcm)} bytes of noise")


class Unloadable(Letters):
    def __init__(self, *, model: str, grammar: str) -> None:
        del model, grammar
        raise RuntimeError("no such model")


class Crashing(Letters):
    def accept(self, pcm: bytes) -> list[str]:
        del pcm
        os._exit(7)


class Hanging(Letters):
    def accept(self, pcm: bytes) -> list[str]:
        time.sleep(600)
        return super().accept(pcm)


class HoldsTheInterpreter(Letters):
    """Opens the pipe whose name it hears, in native code and without letting go, until somebody opens the other end."""

    def accept(self, pcm: bytes) -> list[str]:
        ctypes.PyDLL(None).open(pcm.strip(), os.O_RDONLY)
        return ["opened"]
