"""The reads of `tenure doctor` about the database itself. None of these methods changes anything."""

from collections.abc import Sequence
from typing import Protocol

from tenure.domain.doctor import FileFacts, PoolerMode, ServerFacts, TableChurn, UnsentUsage


class DoctorStore(Protocol):
    async def read_server(self) -> ServerFacts:
        """Reads the server's clock, how many connections the server allows and how many are open, and whether the
        server refuses writes. A number that the engine does not know is None.
        """

    async def read_churn(self) -> Sequence[TableChurn]:
        """Returns the statistics of each table, ordered by name. Empty if the engine keeps none."""

    async def detect_pooler(self) -> PoolerMode:
        """On PostgreSQL, opens two connections and compares which backends serve them. Other engines return NONE."""

    async def find_unsent_usage(self) -> UnsentUsage:
        """Counts the unsent windows that have usage. Unsent windows are those that `list_unsent_windows` returns."""

    def describe_file(self) -> FileFacts | None:
        """Looks at the file of the database without opening it. None if the database is not a file."""
