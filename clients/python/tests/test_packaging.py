"""The wheels of the client and of the service, installed alone and together. Both wheels contain the client."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "clients" / "python" / "src" / "tenure_client"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build both wheels with pip. Skipped if pip cannot get the build backend, as on a machine without network."""
    folder = tmp_path_factory.mktemp("wheels")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT / "clients" / "python", ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0 and "hatchling" in built.stderr:
        pytest.skip(f"pip cannot get hatchling: {built.stderr[-300:]}")
    assert built.returncode == 0, built.stderr
    return sorted(folder.glob("*.whl"))


def test_both_wheels_contain_the_whole_client(wheels: list[Path]) -> None:
    expected = {f"tenure_client/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*.py")}
    expected.add("tenure_client/py.typed")
    contents = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as opened:
            contents.append({name for name in opened.namelist() if name.startswith("tenure_client/")})
    assert contents == [expected, expected]


def test_client_can_be_imported_with_and_without_the_service(wheels: list[Path], tmp_path: Path) -> None:
    """Each combination of wheels is installed into its own folder. The dependencies come from this environment."""
    code = "import sys, tenure_client.testing as t; print(t.__file__); print('tenure' in sys.modules)"
    service, client = (next(w for w in wheels if w.name.startswith(name)) for name in ("tenure-", "tenure_client-"))
    for number, chosen in enumerate(([client], [service], [service, client], [client, service])):
        target = tmp_path / str(number)
        for wheel in chosen:
            subprocess.run(
                [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", target, wheel],
                check=True,
                capture_output=True,
            )
        environment = {**os.environ, "PYTHONPATH": str(target)}
        shown = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert shown.stdout.split() == [str(target / "tenure_client" / "testing.py"), "False"]
