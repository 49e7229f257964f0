"""The files for containers name only pinned images, and ports, commands, settings and paths that exist."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from tenure.cli.main import app
from tenure.config import load
from tenure.server.process import DRAIN_SECONDS
from tests.deployment.proxies import DEPLOY, replaced
from tests.support.databases import Database
from tests.support.instances import RunningInstance

ROOT = DEPLOY.parent
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
COMPOSE = DEPLOY / "compose"
PREFIX = "TENURE_"
PINNED = re.compile(r"[\w./-]+:v?\d[\w.-]*")
INSTANCES = ("tenure-1", "tenure-2", "tenure-3")

Start = Callable[..., RunningInstance]


@pytest.fixture(scope="module")
def compose() -> Any:
    text = (COMPOSE / "compose.yml").read_text()
    # Substitutes variables as Compose does. The value of each variable is its name.
    return yaml.safe_load(re.sub(r"\$\{(\w+)[^}]*\}", r"\1", text))


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "tenure.yml").read_text())
    return {document["kind"]: document for document in documents}


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


def check_command(arguments: Iterable[str]) -> None:
    """Parses the arguments without running the command."""
    result = CliRunner().invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0, (arguments, result.output)


def check_settings(environment: dict[str, str], flags: dict[str, str] | None = None, file: Path | None = None) -> Any:
    own = {name: str(value) for name, value in environment.items() if name.startswith(PREFIX)}
    assert own
    return load(flags or {}, own, file)


# Image


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in instructions("ENV") for pair in shlex.split(line))


@pytest.mark.skipif(shutil.which("hadolint", path=str(Path(sys.executable).parent)) is None, reason="no hadolint")
def test_hadolint_accepts_dockerfile() -> None:
    program = Path(sys.executable).with_name("hadolint")
    command = [str(program), "--no-color", str(DEPLOY / "docker" / "Dockerfile")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout) == (0, "")


def test_image_copies_existing_files_and_runs_a_command_as_unprivileged_user() -> None:
    allowed = set((DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines())
    copied = [part for line in instructions("COPY") if "--from" not in line for part in line.split()[:-1]]
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in allowed
    user, group = instructions("USER")[-1].split(":")
    assert int(user) > 0 < int(group)
    (entrypoint,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entrypoint) == ["tenure"]
    check_command(json.loads(command))
    config = check_settings(image_environment())
    assert [str(config.port)] == instructions("EXPOSE")


def test_image_is_built_with_the_extras_that_its_page_names() -> None:
    (default,) = set(instructions("ARG"))  # the same in both stages
    (installed,) = re.findall(r"--no-cache-dir (\".*\")$", DOCKERFILE, re.MULTILINE)
    shell = ["/bin/sh", "-c", f"{default}; printf %s {installed}"]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == "."
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"EXTRAS=(\w+)", (DEPLOY / "docker" / "README.md").read_text())
    assert extras
    for extra in extras:
        assert extra in project["optional-dependencies"]
        shell = ["/bin/sh", "-c", f"EXTRAS={extra}; printf %s {installed}"]
        assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == f".[{extra}]"


def test_image_copies_every_file_that_the_wheel_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = [part for line in instructions("COPY") if "--from" not in line for part in line.split()[:-1]]
    for path in [*packages, project["project"]["readme"]]:
        assert path.partition("/")[0] in copied
    # A symbolic link in a package must lead to a copied folder.
    for package in packages:
        for link in (each for each in (ROOT / package).rglob("*") if each.is_symlink()):
            assert link.resolve().relative_to(ROOT).parts[0] in copied


def test_health_check_of_image_succeeds_while_an_instance_runs(sqlite_database: Database, start: Start) -> None:
    (check,) = re.findall(r"HEALTHCHECK .*?CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    python, option, code = json.loads(check)
    assert python == "python"
    instance = start(sqlite_database.url).wait_until_ready()
    here = replaced(code, rf":{image_environment()['TENURE_PORT']}/", f":{instance.port}/")
    assert subprocess.run([sys.executable, option, here], check=False, timeout=30).returncode == 0
    instance.kill()
    dead = subprocess.run([sys.executable, option, here], check=False, timeout=30, stderr=subprocess.DEVNULL)
    assert dead.returncode != 0


def test_images_are_pinned(compose: Any, manifests: dict[str, Any]) -> None:
    images = [line.split()[0] for line in instructions("FROM")]
    images += [service["image"] for service in compose["services"].values()]
    for kind in ("Deployment", "Job"):
        images += [container["image"] for container in containers(manifests[kind])]
    images += [container["image"] for container in tools_pod()["spec"]["containers"]]
    assert [image for image in images if not PINNED.fullmatch(image)] == []
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    own = {image for image in images if image.startswith("tenure:")}
    assert own == {f"tenure:{version.rpartition('.')[0]}"}


# Compose


def test_instances_of_compose_have_valid_settings_and_trust_haproxy(compose: Any) -> None:
    services = compose["services"]
    haproxy = services["haproxy"]["networks"]["tenure"]["ipv4_address"]
    for name in INSTANCES:
        config = check_settings(image_environment() | services[name]["environment"])
        assert name in config.http.allowed_hosts
        assert haproxy in config.http.trusted_proxies
        for gateway in config.gateways.values():
            assert re.match(r"http://receiver:9090/", gateway.url)
        assert seconds(services[name]["stop_grace_period"]) > config.http.drain_seconds + DRAIN_SECONDS
        address = services[name]["networks"]["tenure"]["ipv4_address"]
        assert f"{name}:{address}" in services["haproxy"]["extra_hosts"]


def test_commands_and_files_of_compose_exist(compose: Any) -> None:
    for name, service in compose["services"].items():
        if service["image"].startswith("tenure:") and "command" in service:
            check_command(service["command"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith(".") and not source.endswith(".key"):
                assert (COMPOSE / source).exists(), (name, source)
            elif not source.startswith("."):
                assert source in compose["volumes"]
    provided = re.findall(r"([A-Z_]+)=%s", (COMPOSE / "README.md").read_text())
    assert set(provided) == set(re.findall(r"\$\{(\w+)", (COMPOSE / "compose.yml").read_text()))


def test_haproxy_prometheus_and_grafana_of_compose_find_each_other(compose: Any) -> None:
    services = compose["services"]
    servers = re.findall(
        r"^ +server \w+ ([\w.-]+):(\d+)", (DEPLOY / "haproxy" / "haproxy.cfg").read_text(), re.MULTILINE
    )
    port = image_environment()["TENURE_PORT"]
    assert set(servers) == {(name, port) for name in INSTANCES}
    scrape = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{name}:{port}" for name in INSTANCES]}]
    original = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (expected,) = original["scrape_configs"]
    assert {**expected, "static_configs": None} == {**job, "static_configs": None}
    targets = {volume.split(":")[1] for service in ("prometheus", "grafana") for volume in services[service]["volumes"]}
    assert {job["authorization"]["credentials_file"], "/etc/prometheus/rules.yml"} <= targets
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "tenure.yml").read_text())["providers"]
    assert f"{provider['options']['path']}/dashboard.json" in targets


# Kubernetes


def tools_pod() -> Any:
    return yaml.safe_load((DEPLOY / "kubernetes" / "tools.yml").read_text())


def containers(manifest: Any) -> list[Any]:
    return list(manifest["spec"]["template"]["spec"]["containers"])


@pytest.mark.filterwarnings("ignore")
def test_manifests_conform_to_the_schemas_of_kubernetes(manifests: dict[str, Any]) -> None:
    for manifest in (*manifests.values(), tools_pod()):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    broken = {**manifests["Service"], "spec": {"ports": [{"port": "eighty"}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def test_commands_settings_and_probes_of_manifests_exist(manifests: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "tenure.toml"
    file.write_text(manifests["ConfigMap"]["data"]["tenure.toml"])
    config = check_settings(image_environment(), file=file)
    (container,), (migration,) = containers(manifests["Deployment"]), containers(manifests["Job"])
    for each in (container, migration):
        check_command(each["args"])
        # A manifest contains no secrets, only references to them.
        assert all(set(variable) == {"name", "valueFrom"} for variable in each["env"])
        check_settings({variable["name"]: "sqlite:///x" for variable in each["env"]})
    (mount,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "configuration"]
    assert f"{mount}/tenure.toml" in container["args"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    (port,) = container["ports"]
    assert port["containerPort"] == config.port
    (ingress,) = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert ingress["ports"][0]["port"] == config.port
    pause = int(re.findall(r"sleep\((\d+)\)", " ".join(container["lifecycle"]["preStop"]["exec"]["command"]))[0])
    grace = manifests["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > pause + config.http.drain_seconds + DRAIN_SECONDS


def test_pod_for_tools_runs_the_commands_of_the_page_and_gets_no_requests(manifests: dict[str, Any]) -> None:
    pod = tools_pod()
    (container,) = pod["spec"]["containers"]
    migration = containers(manifests["Job"])[0]
    assert {name: container[name] for name in ("env", "securityContext")} == {
        name: migration[name] for name in ("env", "securityContext")
    }
    page = (DEPLOY / "kubernetes" / "README.md").read_text()
    commands = re.findall(rf"kubectl exec {pod['metadata']['name']} -- tenure (.+?) >", page)
    assert commands
    for command in commands:
        check_command(shlex.split(command))
    labels = pod["metadata"]["labels"]
    assert manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert not manifests["Service"]["spec"]["selector"].items() <= labels.items()


def test_every_selector_matches_the_pods(manifests: dict[str, Any]) -> None:
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    spec = manifests["Deployment"]["spec"]
    selectors = [
        spec["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in spec["template"]["spec"]["topologySpreadConstraints"]),
    ]
    assert [selector for selector in selectors if not selector.items() <= labels.items()] == []
    # If the selector of the service matched the pod of the migration, that pod would get requests of clients.
    assert (
        not manifests["Service"]["spec"]["selector"].items()
        <= manifests["Job"]["spec"]["template"]["metadata"]["labels"].items()
    )


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))
