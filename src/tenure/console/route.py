"""Serves the console: one page for every address below `/console`, and the files that the page needs.

The page is the same for every address, because its script shows the content for the address. The page loads its files
from a folder that is named after their digest, `/console/assets/<digest>/`. So a browser may cache them permanently,
and loads new ones after an upgrade. While instances of two versions run, a browser with a new page may request the
files of this page from an old instance. The old instance then returns its own files, marked as `no-store`.

All files are read and compressed when the instance starts. A request selects one of them by name; no path in the file
system is ever built from a request.
"""

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from tenure.access.grants import PUBLIC
from tenure.errors import NotFound
from tenure.http.answers import Answer, Headers
from tenure.http.pipeline import Call, Route

STATIC = Path(__file__).with_name("static")
PAGE = "index.html"
ASSETS = "assets/"
DIGEST_LENGTH = 16
NOT_MODIFIED = 304
YEAR_SECONDS = 31_536_000
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY: Headers = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
FOR_EVER = f"public, max-age={YEAR_SECONDS}, immutable"
CHECK_EACH_TIME = "no-cache"
DO_NOT_KEEP = "no-store"


class AnyQuery(msgspec.Struct, frozen=True):
    """Ignores the query, which belongs to the page: the page keeps its filters there."""


class FileHeaders(msgspec.Struct, frozen=True):
    if_none_match: str = msgspec.field(name="If-None-Match", default="")
    accept_encoding: str = msgspec.field(name="Accept-Encoding", default="")


class _File(NamedTuple):
    content: bytes
    compressed: bytes
    media_type: str
    digest: str

    def answer(self, headers: FileHeaders, cache_control: str) -> Answer:
        accepts_gzip = "gzip" in headers.accept_encoding.lower()
        tag = f'"{self.digest}{"-gzip" if accepts_gzip else ""}"'
        described = [
            (b"etag", tag.encode()),
            (b"cache-control", cache_control.encode()),
            (b"vary", b"accept-encoding"),
            *SECURITY,
        ]
        if _names(headers.if_none_match, tag):
            return Answer(b"", NOT_MODIFIED, described)
        described.append((b"content-type", self.media_type.encode()))
        if not accepts_gzip:
            return Answer(self.content, headers=described)
        return Answer(self.compressed, headers=[*described, (b"content-encoding", b"gzip")])


class ConsoleRoutes:
    def __init__(self, prefix: str) -> None:
        contents = {
            path.relative_to(STATIC).as_posix(): path.read_bytes()
            for path in sorted(STATIC.rglob("*"))
            if path.suffix in MEDIA_TYPES
        }
        page = contents.pop(PAGE).decode()
        self._digest = _digest_of_all(contents)
        folder = f"{prefix}/console/"
        page = page.replace("{{base}}", folder).replace("{{assets}}", f"{ASSETS}{self._digest}")
        self._page = _file(PAGE, page.encode())
        self._files: Mapping[str, _File] = {name: _file(name, content) for name, content in contents.items()}

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path=path,
                handler=self.serve,
                grants=PUBLIC,
                tag="console",
                summary="The console (HTML)",
                description="All addresses below this one serve the same page. The files of the page are in `assets/`.",
                query=AnyQuery,
                headers=FileHeaders,
                answers={200: None},
                refusals=(NotFound,),
                listed=False,
            )
            for path in ("/console", "/console/{path*}")
        ]

    async def serve(self, call: Call) -> Answer:
        path = call.path.get("path", "")
        if not path.startswith(ASSETS):
            return self._page.answer(call.headers, CHECK_EACH_TIME)
        digest, _, name = path.removeprefix(ASSETS).partition("/")
        file = self._files.get(name)
        if file is None:
            raise NotFound("the console has no such file")
        return file.answer(call.headers, FOR_EVER if digest == self._digest else DO_NOT_KEEP)


def _names(if_none_match: str, tag: str) -> bool:
    """Whether the header `If-None-Match` names the tag. A proxy that compresses marks tags as weak (`W/`)."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in if_none_match.split(","))


@cache
def _file(name: str, content: bytes) -> _File:
    digest = hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]
    return _File(content, gzip.compress(content, mtime=0), MEDIA_TYPES[Path(name).suffix], digest)


def _digest_of_all(contents: Mapping[str, bytes]) -> str:
    """Return a digest that changes with the name or the content of any file."""
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:DIGEST_LENGTH]
