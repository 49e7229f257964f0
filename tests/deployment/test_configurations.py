"""The programs that read the files of `deploy/` accept them."""

import subprocess
from pathlib import Path

from tests.deployment.proxies import haproxy_file, needs_haproxy, needs_nginx, nginx_file
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
