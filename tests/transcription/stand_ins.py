"""Recognisers whose audio is ASCII text; a full stop ends an utterance."""

import ctypes
import os
import time


class Letters:
    def __init__(self, *, model: str, grammar: str) -> None:
        del model, grammar
        self._text = ""

    def accept(self, pcm: bytes) -> list[str]:
        *ended, self._text = (self._text + pcm.decode()).split(".")
        return ended

    def partial(self) -> str:
        return self._text.strip()

    def finish(self) -> str:
        return self._text.strip()


class Forgetful(Letters):
    def finish(self) -> str:
        return ""


class Chatty(Letters):
    def accept(self, pcm: bytes) -> list[str]:
        os.write(1, b"output of a library\n")
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
    """Opens a named pipe, whose path is the audio, in native code. Holds the GIL until the other end is opened."""

    def accept(self, pcm: bytes) -> list[str]:
        ctypes.PyDLL(None).open(pcm.strip(), os.O_RDONLY)
        return ["opened"]
