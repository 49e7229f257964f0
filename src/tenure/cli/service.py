"""Queries a running service, for the commands that have the flag `--url`."""

from collections.abc import Mapping
from decimal import Decimal
from http.client import HTTPException, InvalidURL
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import msgspec
import typer

from tenure.domain.keys import parse_key
from tenure.errors import ConfigurationError

TIMEOUT_SECONDS = 60
FAILED = 1

_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


class Service(NamedTuple):
    """A running service. Its `repr` does not show the key."""

    url: str
    key: str | None

    def __repr__(self) -> str:
        return f"Service({self.url!r})"


def get(service: Service, path: str, query: Mapping[str, object], expected_field: str) -> Any:
    """Return the JSON object of a response, with exact decimals. Use `json_text` to print it.

    Print one line and end the command if the request fails or the object does not have `expected_field`.
    """
    url = service.url
    request = _request(service, path, query)
    try:
        with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - http or https
            content = _decode(response.read())
    except HTTPError as error:
        raise _failure(_detail(error)) from error
    except InvalidURL as error:
        raise _invalid_url() from error
    except (URLError, OSError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise _failure(f"{url} cannot be reached: {reason}") from error
    except (HTTPException, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_a_service(url) from error
    if not isinstance(content, dict) or expected_field not in content:
        raise _not_a_service(url)
    return content


def json_text(content: Any) -> str:
    return _encode(content).decode()


def _request(service: Service, path: str, query: Mapping[str, object]) -> Request:
    url = service.url
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise _invalid_url() from error
    if scheme not in ("http", "https"):
        raise _invalid_url()
    given = {name: value for name, value in query.items() if value is not None}
    address = f"{url.rstrip('/')}{path}" + (f"?{urlencode(given)}" if given else "")
    request = Request(address)  # noqa: S310 - http or https
    if service.key:
        if parse_key(service.key.strip()) is None:
            # Not repeated: it may be a secret.
            raise ConfigurationError("key: must be an API key, as `tenure keys create` prints it")
        # Not sent to another host if the service redirects.
        request.add_unredirected_header("Authorization", f"Bearer {service.key.strip()}")
    return request


def _invalid_url() -> ConfigurationError:
    return ConfigurationError("url: must be a valid http:// or https:// URL")


def _not_a_service(url: str) -> typer.Exit:
    return _failure(f"{url} did not return a valid Tenure response")


def _detail(error: HTTPError) -> str:
    try:
        return str(_decode(error.read())["detail"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, OSError, HTTPException):
        return f"the service responded with status {error.code}"


def _failure(message: str) -> typer.Exit:
    typer.echo(f"tenure: {message}", err=True)
    return typer.Exit(FAILED)
