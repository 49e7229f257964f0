"""HAProxy and nginx accept their files in `deploy/`, and replace forwarded headers of clients."""

import json
import re
import subprocess
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.deployment.proxies import (
    DEPLOY,
    haproxy_command,
    haproxy_file,
    needs_haproxy,
    needs_nginx,
    nginx_command,
    nginx_file,
    running,
)
from tests.support.certificates import certificate_files

PORTS = (8081, 8082, 8083)


def accepts(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_haproxy
def test_haproxy_accepts_its_file_with_and_without_a_certificate(tmp_path: Path) -> None:
    path = haproxy_file(tmp_path, PORTS, 8080)
    accepts("haproxy", "-c", "-f", str(path))
    files = certificate_files(tmp_path)
    files.write("haproxy")
    both = tmp_path / "both.pem"
    both.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    accepts("/usr/bin/env", f"CERTIFICATE={both}", "haproxy", "-c", "-f", str(path))


@needs_nginx
def test_nginx_accepts_its_file(tmp_path: Path) -> None:
    path = nginx_file(tmp_path, PORTS, 8443, tls=True)
    accepts("nginx", "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(path))
    (command,) = re.findall(r"`(nginx -t .*)`", (DEPLOY / "nginx" / "README.md").read_text())
    accepts("/bin/sh", "-c", f'cd "$1" && {command} -e stderr', "sh", str(path.parent))


@needs_haproxy
@needs_nginx
def test_proxies_replace_forwarded_headers_of_clients(tmp_path: Path) -> None:
    """Otherwise a client could pretend to have another address, and escape the limit on wrong credentials."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as upstream:
        thread = Thread(target=upstream.serve_forever)
        thread.start()
        try:
            for name, command in (("haproxy", haproxy_command), ("nginx", nginx_command)):
                folder = tmp_path / name
                folder.mkdir()
                with running(command, folder, [upstream.server_port] * 3) as port:
                    assert forwarded(port) == [["127.0.0.1"], ["http"]], name
        finally:
            upstream.shutdown()
            thread.join()


def forwarded(port: int) -> Any:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/", headers={"X-Forwarded-For": "192.0.2.6", "X-Forwarded-Proto": "https"})
        return json.load(connection.getresponse())


class Echo(BaseHTTPRequestHandler):
    """Answers with the forwarded headers that have arrived."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        names = ("X-Forwarded-For", "X-Forwarded-Proto")
        body = json.dumps([self.headers.get_all(name) for name in names]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        # When the server stops, it waits until all connections are closed.
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Does not write to standard error."""
