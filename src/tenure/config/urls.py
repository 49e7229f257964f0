"""Which URLs are usable, and what of them may be shown."""

from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

SCHEMES = ("sqlite", "postgresql", "mssql")
SQLITE = "sqlite:///"
HIDDEN = "***"
SHOWN_PARAMETERS = ("host", "port", "sslmode", "driver")
"""Drivers take passwords as parameters, too, so none is shown but these."""


def is_database_url(url: str) -> bool:
    return _names_a_file(url) if url.startswith("sqlite:") else _names_a_server(url)


def is_http_url(url: str) -> bool:
    """An http or https address that can be sent as it stands, without credentials in it."""
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
    """A database's URL as it may be shown. Of one that is not usable nobody knows where the password is."""
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
    """A gateway's URL as it may be shown: receivers put tokens into paths and queries."""
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
    """A second @, or one after the host, is part of a password that should have been encoded."""
    parts = _split(url)
    return (
        parts is not None
        and parts.scheme in ("postgresql", "mssql")
        and url.startswith(f"{parts.scheme}://")
        and unquote(url).isprintable()
        and url.count("@") == parts.netloc.count("@") <= 1
        and "#" not in url
        and len(parts.path) > 1
        and (parts.scheme == "postgresql" or bool(parts.hostname))
    )


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        return None
    return parts


def _shown_query(query: str) -> str:
    shown = [f"{name}={value if name in SHOWN_PARAMETERS else HIDDEN}" for name, value in parse_qsl(query)]
    return f"?{'&'.join(shown)}" if shown else ""
