"""The hosts of a PostgreSQL URL, and which of them an instance connects to.

A URL may name several hosts, such as a primary and its standbys. Guarantees:

- Each host has its own time limit of CONNECT_SECONDS, so a host that drops packets does not use up the time of the
  next one.
- After a connection to a host has succeeded, the next attempt begins with this host. So a host that is down delays
  only the attempts that begin before the first success.
- After a fail-over, new connections lead to the new primary. `is_current` returns False for an older connection to
  another host, so that the pool replaces the connection.

A caller may give up before all hosts have been tried. The next attempt then begins with the host that was being tried
or, if that was the first host of the attempt, with the host after it.
"""

import asyncpg

from tenure.clock import monotonic
from tenure.config.urls import split_postgres_url
from tenure.errors import ConfigurationError
from tenure.store.engines.postgres.connections import connect

SEVERAL_HOSTS_NEED = "read-write"
"""The default of `target_session_attrs` for a URL with several hosts, because Tenure cannot work on a standby."""


class HostConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """A connection that stores its host and the time at which it was opened."""

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
    """Return the first error that is not just the refusal of a standby, if there is one; otherwise the last error."""
    standby = asyncpg.TargetServerAttributeNotMatched
    return next((error for error in errors if not isinstance(error, standby)), errors[-1])
