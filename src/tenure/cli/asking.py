"""Asking a running service, for the commands that take `--url`."""

from collections.abc import Mapping
from decimal import Decimal
from http.client import HTTPException, InvalidURL
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import msgspec
import typer

from tenure.errors import ConfigurationError

SECONDS = 60
FAILED = 1

_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def get(url: str, key: str | None, path: str, query: Mapping[str, object], has: str) -> Any:
    """The answer's JSON, its decimals exact; ends the command with one line if there is none, or none that `has` this.

    What it gives is to be shown with `json_text`.
    """
    request = _request(url, key, path, query)
    try:
        with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - http or https
            content = _decode(answer.read())
    except HTTPError as error:
        raise _ended(_detail(error)) from error
    except InvalidURL as error:
        raise _wrong_url() from error
    except (URLError, OSError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise _ended(f"{url} cannot be reached: {reason}") from error
    except (HTTPException, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_tenure(url) from error
    if not isinstance(content, dict) or has not in content:
        raise _not_tenure(url)
    return content


def json_text(answer: Any) -> str:
    return _encode(answer).decode()


def _request(url: str, key: str | None, path: str, query: Mapping[str, object]) -> Request:
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise _wrong_url() from error
    if scheme not in ("http", "https"):
        raise _wrong_url()
    given = {name: value for name, value in query.items() if value is not None}
    request = Request(f"{url.rstrip('/')}{path}" + (f"?{urlencode(given)}" if given else ""))  # noqa: S310 - looked at
    if key is not None:
        if not (key.isascii() and key.isprintable()):
            raise ConfigurationError("key: must be an API key")
        # Whoever else we are sent to need not know it.
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    return request


def _wrong_url() -> ConfigurationError:
    return ConfigurationError("url: must be an address that begins with http:// or https://")


def _not_tenure(url: str) -> typer.Exit:
    return _ended(f"{url} does not answer as Tenure does")


def _detail(error: HTTPError) -> str:
    try:
        return str(_decode(error.read())["detail"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, OSError, HTTPException):
        return f"answered {error.code}"


def _ended(message: str) -> typer.Exit:
    typer.echo(f"tenure: {message}", err=True)
    return typer.Exit(FAILED)
