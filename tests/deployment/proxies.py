"""Runs HAProxy and nginx with the files of `deploy/`. Only what depends on the machine is replaced: addresses, ports,
folders and certificates. For nginx without TLS, the lines about TLS are removed.
"""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import certificate_files

DEPLOY = Path(__file__).parents[2] / "deploy"
START_SECONDS = 10

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


def free_port() -> int:
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def replaced(text: str, pattern: str, replacement: str) -> str:
    """Replaces every match of `pattern` in `text`. Fails if there is none."""
    changed, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
    assert count, pattern
    return changed


def with_instances(text: str, ports: Sequence[int]) -> str:
    for number, port in enumerate(ports, 1):
        text = replaced(text, rf"\btenure-{number}:8080\b", f"127.0.0.1:{port}")
    return text


def haproxy_file(folder: Path, ports: Sequence[int], port: int) -> Path:
    text = with_instances((DEPLOY / "haproxy" / "haproxy.cfg").read_text(), ports)
    text = replaced(text, r"bind :8080$", f"bind 127.0.0.1:{port}")
    text = replaced(text, r"bind 127\.0\.0\.1:8404$", f"bind 127.0.0.1:{free_port()}")
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return path


def nginx_file(folder: Path, ports: Sequence[int], port: int, *, tls: bool) -> Path:
    text = with_instances((DEPLOY / "nginx" / "nginx.conf").read_text(), ports)
    text = replaced(text, r"/run/nginx\.pid", str(folder / "nginx.pid"))
    # The temporary folders that the package of nginx creates belong to root, so nginx gets folders of the test.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"\n    {kind}_temp_path {folder / kind};" for kind in kinds)
    text = replaced(text, r"^http \{$", "http {" + temporary)
    if tls:
        files = certificate_files(folder)
        files.write("nginx")
        text = replaced(text, r"/etc/nginx/tenure", str(folder))
        text = replaced(text, r"listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
    else:
        text = replaced(text, r"listen 443 ssl;", f"listen 127.0.0.1:{port};")
        text = replaced(text, r"^ +ssl_.*\n", "")
    path = folder / "nginx.conf"
    path.write_text(text)
    return path


def haproxy_command(folder: Path, ports: Sequence[int], port: int) -> list[str]:
    return ["haproxy", "-db", "-f", str(haproxy_file(folder, ports, port))]


def nginx_command(folder: Path, ports: Sequence[int], port: int) -> list[str]:
    path = nginx_file(folder, ports, port, tls=False)
    return ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(path), "-g", "daemon off;"]


@contextmanager
def running(
    command: Callable[[Path, Sequence[int], int], list[str]], folder: Path, ports: Sequence[int]
) -> Iterator[int]:
    """Runs the proxy and yields its port."""
    port = free_port()
    log = folder / "proxy.log"
    with log.open("w") as output:
        process = subprocess.Popen(command(folder, ports, port), stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def listens(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
