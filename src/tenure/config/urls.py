"""Validates URLs, and masks the secrets in them."""

import ipaddress
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

SCHEMES = ("sqlite", "postgresql", "mssql")
SQLITE = "sqlite:///"
HIDDEN = "***"
SHOWN_PARAMETERS = ("host", "port", "target_session_attrs", "sslmode", "driver")
"""Query parameters whose values are printed. All others are masked, because drivers accept passwords as parameters."""

SESSION_ATTRIBUTES = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
PORT_MAX = 65_535


class PostgresHost(NamedTuple):
    """A host of a PostgreSQL URL: a name, an address or the folder of a socket. None: the default of the driver."""

    host: str | None = None
    port: int | None = None


class PostgresUrl(NamedTuple):
    """A PostgreSQL URL, taken apart. `rest` is the URL without its hosts, ports and session attributes."""

    rest: str
    hosts: tuple[PostgresHost, ...]
    session_attributes: str | None


def is_database_url(url: str) -> bool:
    return _names_a_file(url) if url.startswith("sqlite:") else _names_a_server(url)


def is_http_url(url: str) -> bool:
    """Return whether `url` is an http or https URL that needs no encoding, and has no credentials and no fragment."""
    parts = _split(url)
    return (
        parts is not None
        and parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and all("!" <= character <= "~" for character in url)
        and "@" not in parts.netloc
        and "#" not in url
    )


def is_secure_url(url: str) -> bool:
    """Return whether the URL is protected from attackers in the network: https, or http to a loopback host."""
    return is_http_url(url) and (urlsplit(url).scheme == "https" or is_loopback(urlsplit(url).hostname or ""))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_password(url: str) -> str:
    """Mask the password in a database URL, and the query parameters that are not in SHOWN_PARAMETERS.

    An invalid URL is masked entirely: the password could be anywhere in it.
    """
    if not is_database_url(url):
        return HIDDEN
    if url.startswith(SQLITE):
        return url
    parts = urlsplit(url)
    user_and_password, at, address = parts.netloc.rpartition("@")
    user, colon, _ = user_and_password.partition(":")
    password = HIDDEN if colon else ""
    return f"{parts.scheme}://{user}{colon}{password}{at}{address}{parts.path}{_shown_query(parts.query)}"


def origin(url: str) -> str:
    """Mask path and query of an HTTP URL, because they may contain tokens."""
    parts = _split(url)
    if parts is None or not is_http_url(url):
        return HIDDEN
    return f"{parts.scheme}://{parts.netloc}" + (f"/{HIDDEN}" if parts.path.strip("/") or parts.query else "")


def _names_a_file(url: str) -> bool:
    file = unquote(url.removeprefix(SQLITE))
    return (
        url.startswith(SQLITE)
        and file.isprintable()
        and "?" not in url
        and file not in ("", ":memory:")
        and not file.endswith("/")
    )


def _names_a_server(url: str) -> bool:
    """Return whether the URL names a server and a database.

    A second @, or an @ after the host, is refused: it probably belongs to a password that was not percent-encoded.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return (
        parts.scheme in ("postgresql", "mssql")
        and url.startswith(f"{parts.scheme}://")
        and unquote(url).isprintable()
        and url.count("@") == parts.netloc.count("@") <= 1
        and "#" not in url
        and len(parts.path) > 1
        and (_names_hosts(url) if parts.scheme == "postgresql" else _names_one_host(url))
    )


def _names_one_host(url: str) -> bool:
    parts = _split(url)
    return parts is not None and bool(parts.hostname)


def _names_hosts(url: str) -> bool:
    """Return whether the hosts of a PostgreSQL URL are valid. A URL may have several hosts, or none (Unix socket)."""
    try:
        split_postgres_url(url)
    except ValueError:
        return False
    return True


def split_postgres_url(url: str) -> PostgresUrl:
    """Take a URL apart. Raise `ValueError` if a host, a port or the session attributes are invalid.

    Hosts are separated by commas, either before the path or in the parameter `host`. Each may have a port after a
    colon. The parameter `port` has one port for all hosts, or one for each.

    Libpq differs in some points. In libpq, both parameters override hosts and ports before the path. Here, the
    parameter `host` is ignored if there are hosts before the path, and a port after a colon there takes precedence. In
    the parameter `host`, libpq knows no port after a colon, and an IPv6 address needs no brackets.
    """
    parts = urlsplit(url)
    user_and_password, at, address = parts.netloc.rpartition("@")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    in_parameters, ports = parameters.pop("host", ""), parameters.pop("port", "")
    attributes = parameters.pop("target_session_attrs", None)
    if attributes is not None and attributes not in SESSION_ATTRIBUTES:
        raise ValueError("target_session_attrs must be one of " + ", ".join(SESSION_ATTRIBUTES))
    hosts = _hosts_of(address, unquote) if address else _hosts_of(in_parameters, str)
    query = f"?{urlencode(parameters)}" if parameters else ""
    rest = f"{parts.scheme}://{user_and_password}{at}{parts.path}{query}"
    with_ports = _with_ports(hosts, ports)
    if address:
        with_ports = tuple(own if own.port else given for own, given in zip(hosts, with_ports, strict=True))
    return PostgresUrl(rest, with_ports, attributes)


_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:]*))(?::(?P<port>[0-9]+))?")


def _hosts_of(text: str, decode: Callable[[str], str]) -> tuple[PostgresHost, ...]:
    hosts = tuple(_host_of(part, decode) for part in text.split(","))
    if len(hosts) > 1 and any(host is None for host, _ in hosts):
        raise ValueError("one of several hosts has no name")
    return hosts


def _host_of(text: str, decode: Callable[[str], str]) -> PostgresHost:
    if text.startswith("/"):
        return PostgresHost(text)  # the folder of a socket may contain colons
    match = _HOST.fullmatch(text)
    if match is None:
        raise ValueError("a host must be a name or an address, optionally with a colon and a port")
    name = decode(match["address"] or match["name"])
    return PostgresHost(name or None, _port(match["port"]) if match["port"] else None)


def _with_ports(hosts: tuple[PostgresHost, ...], text: str) -> tuple[PostgresHost, ...]:
    if not text:
        return hosts
    ports = [_port(port) for port in text.split(",")]
    if len(ports) not in (1, len(hosts)):
        raise ValueError("there must be one port for all hosts, or one for each host")
    each = ports * len(hosts) if len(ports) == 1 else ports
    return tuple(PostgresHost(host, port) for (host, _), port in zip(hosts, each, strict=True))


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port <= PORT_MAX:
        raise ValueError(f"a port must be a number from 1 to {PORT_MAX}")
    return port


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading the port validates it
    except ValueError:
        return None
    return parts


def _shown_query(query: str) -> str:
    shown = [
        f"{name}={quote(value, safe='/:,') if name in SHOWN_PARAMETERS else HIDDEN}"
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return f"?{'&'.join(shown)}" if shown else ""
