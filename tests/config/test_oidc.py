"""The settings of an OIDC issuer."""

from pathlib import Path

from tenure.config import OidcConfig, load
from tenure.config.urls import is_secure_url
from tests.config.conftest import ErrorMessage

REQUIRED = """[oidc]
issuer = "https://login.example"
audience = "tenure"
jwks_url = "https://login.example/keys"
"""


def from_file(folder: Path, toml: str, **environment: str) -> OidcConfig:
    (folder / "tenure.toml").write_text(toml, encoding="utf-8")
    oidc = load({}, environment).oidc
    assert oidc is not None
    return oidc


def test_claims_and_roles_have_defaults(empty_folder: Path) -> None:
    assert load({}, {}).oidc is None
    oidc = from_file(empty_folder, REQUIRED)
    assert (oidc.tenant_claim, oidc.user_claim, oidc.roles_claim, oidc.leeway_seconds) == ("tid", "oid", "roles", 30)
    assert oidc.roles == {"client": "client", "reader": "reader", "operator": "operator"}
    assert oidc.staff_tenant is None


def test_configured_roles_replace_the_defaults(empty_folder: Path) -> None:
    """If the default roles stayed valid, a token with the role `operator` would be accepted as one of an operator."""
    oidc = from_file(empty_folder, f'{REQUIRED}roles = {{ "Tenure.Operate" = "operator" }}')
    assert oidc.roles == {"Tenure.Operate": "operator"}


def test_issuer_audience_and_jwks_url_are_required(error_message: ErrorMessage) -> None:
    for name in ("issuer", "audience", "jwks_url"):
        rest = "\n".join(line for line in REQUIRED.splitlines() if not line.startswith(name))
        assert error_message(toml=rest) == f"oidc.{name} (from tenure.toml): is required if oidc is configured"


def test_wrong_values_are_refused(error_message: ErrorMessage) -> None:
    for line, rule in (
        ('staff_tenant = "staff"', "oidc.staff_tenant (from tenure.toml): must be a UUID"),
        (
            "leeway_seconds = 61",
            "oidc.leeway_seconds (from tenure.toml): must be a whole number of seconds from 0 to 60",
        ),
        ('roles = { x = "admin" }', "oidc.roles.x (from tenure.toml): must be client, reader or operator"),
    ):
        assert error_message(toml=REQUIRED + line) == rule


def test_keys_are_fetched_over_https_or_from_loopback_only() -> None:
    for url in ("http://login.example/keys", "http://10.0.0.1/keys", "http://127.0.0.1.evil.example/", "ftp://::1/"):
        assert not is_secure_url(url), url
    for url in ("http://127.0.0.1:5/keys", "http://localhost/keys", "http://[::1]/keys", "https://10.0.0.1/keys"):
        assert is_secure_url(url), url


def test_sign_in_needs_client_id_authorization_url_and_token_url(error_message: ErrorMessage) -> None:
    lines = {
        "client_id": 'client_id = "tenure"\n',
        "authorization_url": 'authorization_url = "https://login.example/authorize"\n',
        "token_url": 'token_url = "https://login.example/token"\n',
    }
    for missing in lines:
        given = [name for name in lines if name != missing]
        toml = REQUIRED + "".join(lines[name] for name in given)
        assert error_message(toml=toml) == f"oidc.{given[0]} (from tenure.toml): requires oidc.{missing}"
    for name in ("client_secret", "scope"):
        assert error_message(toml=f'{REQUIRED}{name} = "x"') == (
            f"oidc.{name} (from tenure.toml): requires oidc.client_id"
        )


def test_client_secret_is_masked(empty_folder: Path) -> None:
    toml = f"""{REQUIRED}
client_id = "tenure"
client_secret = "planted"
authorization_url = "https://login.example/authorize"
token_url = "https://login.example/token"
"""
    assert "planted" not in repr(from_file(empty_folder, toml))
