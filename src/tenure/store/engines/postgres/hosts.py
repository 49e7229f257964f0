"""The hosts of a PostgreSQL URL, and which of them an instance connects to.

A URL may name several hosts, such as a primary and its standbys. Guarantees:

- Each host has its own CONNECT_SECONDS. A host that drops packets does not keep the next one from being tried.
- The host that was reached last is tried first, so a host that is down delays a connection only once.
- After a fail-over, new connections lead to the new primary. `is_current` returns False for an older connection to
  another host, so that it is not used any more.

Interruptions of an attempt: a caller gives up after less time than all hosts may need. The next attempt then begins
with the host that had too little time, or with the one after it, if that host had its whole time.
"""

import asyncpg

from tenure.clock import monotonic
from tenure.config.urls import split_postgres_url
from tenure.errors import ConfigurationError
from tenure.store.engines.postgres.connections import connect

SEVERAL_HOSTS_NEED = "read-write"
"""The session attributes if a URL with several hosts has none: on a standby, Tenure could not do anything."""


class HostConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """Knows its host and its age."""

    __slots__ = ("connected_at", "host_index")


class Hosts:
    def __init__(self, url: str) -> None:
        try:
            self._url, self._hosts, attributes = split_postgres_url(url)
        except ValueError as error:
            raise ConfigurationError(f"database: {error}") from error
        self._attributes = attributes or (SEVERAL_HOSTS_NEED if len(self._hosts) > 1 else None)
        self._first = 0
        self._reached = 0

    def is_current(self, connection: HostConnection) -> bool:
        """Return whether the connection leads to the host that was reached last."""
        return bool(connection.host_index == self._reached)

    async def connect(self, settings: dict[str, str]) -> HostConnection:
        first, count = self._first, len(self._hosts)
        errors: list[Exception] = []
        for index in (*range(first, count), *range(first)):
            try:
                connection = await self._connect_to(index, settings)
            except ConfigurationError:
                raise
            except Exception as error:  # noqa: BLE001 - the next host may be better; raised below
                errors.append(error)
                if self._first == index:
                    self._first = (index + 1) % count
            except BaseException:
                self._first = (index + 1) % count if index == first else index
                raise
            else:
                self._first = self._reached = index
                return connection
        raise _most_relevant(errors)

    async def _connect_to(self, index: int, settings: dict[str, str]) -> HostConnection:
        host, port = self._hosts[index]
        connection: HostConnection = await connect(
            self._url,
            settings,
            host=host,
            port=port,
            target_session_attrs=self._attributes,
            connection_class=HostConnection,
        )
        connection.host_index, connection.connected_at = index, monotonic()
        return connection


def _most_relevant(errors: list[Exception]) -> Exception:
    """Prefer an error of a host that might have been the primary over that of a standby, which works as it should."""
    standby = asyncpg.TargetServerAttributeNotMatched
    return next((error for error in errors if not isinstance(error, standby)), errors[-1])
