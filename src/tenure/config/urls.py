"""Validates URLs, and masks the secrets in them."""

from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

SCHEMES = ("sqlite", "postgresql", "mssql")
SQLITE = "sqlite:///"
HIDDEN = "***"
SHOWN_PARAMETERS = ("host", "port", "sslmode", "driver")
"""Query parameters whose values are shown. All others are masked, because drivers accept passwords as parameters."""


def is_database_url(url: str) -> bool:
    return _names_a_file(url) if url.startswith("sqlite:") else _names_a_server(url)


def is_http_url(url: str) -> bool:
    """Return whether `url` is an http or https URL that needs no encoding and contains no credentials."""
    parts = _split(url)
    return (
        parts is not None
        and parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and all("!" <= character <= "~" for character in url)
        and "@" not in parts.netloc
        and "#" not in url
    )


def without_password(url: str) -> str:
    """Mask the password in a database URL. An invalid URL is masked entirely: the password could be anywhere in it."""
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
    """Mask path and query of a gateway URL, because receivers put tokens there."""
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
    """Refuses a second @ or an @ after the host, because it belongs to a password that was not percent-encoded."""
    parts = _split(url)
    return (
        parts is not None
        and parts.scheme in ("postgresql", "mssql")
        and url.startswith(f"{parts.scheme}://")
        and unquote(url).isprintable()
        and url.count("@") == parts.netloc.count("@") <= 1
        and "#" not in url
        and len(parts.path) > 1
        # PostgreSQL needs no host: it may be reached on a Unix socket.
        and (parts.scheme == "postgresql" or bool(parts.hostname))
    )


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading the port validates it
    except ValueError:
        return None
    return parts


def _shown_query(query: str) -> str:
    shown = [f"{name}={value if name in SHOWN_PARAMETERS else HIDDEN}" for name, value in parse_qsl(query)]
    return f"?{'&'.join(shown)}" if shown else ""
