"""A proxy to a PostgreSQL server: a `Link` of `proof/network.py` with a database URL. A test can break the link."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from proof.network import Link, Network


class Proxy(Link):
    """Forwards to the server's Unix socket."""

    def __init__(self, network: Network, url: str) -> None:
        self._url = make_url(url)
        super().__init__(network, "database", str(Path(str(self._url.query["host"])) / ".s.PGSQL.5432"))

    @property
    def url(self) -> str:
        through = self._url.set(host="127.0.0.1", port=self.port, query={})
        return through.render_as_string(hide_password=False)


@contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    network = Network()
    proxy = Proxy(network, url)
    try:
        yield proxy
    finally:
        proxy.cut()
        network.close()
