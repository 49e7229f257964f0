"""The settings of an OIDC issuer. The section `[oidc]` itself is refused until its tokens take effect."""

from tenure.config import OidcConfig
from tenure.config.urls import is_secure_url


def test_claims_and_roles_have_defaults() -> None:
    oidc = OidcConfig(issuer="https://login.example", audience="tenure", jwks_url="https://login.example/keys")
    assert (oidc.tenant_claim, oidc.user_claim, oidc.roles_claim, oidc.leeway_seconds) == ("tid", "oid", "roles", 30)
    assert oidc.roles == {"client": "client", "reader": "reader", "operator": "operator"}


def test_keys_are_fetched_over_https_or_from_loopback_only() -> None:
    for url in ("http://login.example/keys", "http://10.0.0.1/keys", "http://127.0.0.1.evil.example/", "ftp://::1/"):
        assert not is_secure_url(url), url
    for url in ("http://127.0.0.1:5/keys", "http://localhost/keys", "http://[::1]/keys", "https://10.0.0.1/keys"):
        assert is_secure_url(url), url
