"""The sign-in of a person at the OIDC issuer: the authorisation code flow with PKCE (RFC 6749, RFC 7636).

1. `begin` makes three random values, a *state*, a *nonce* and a *verifier*. It sends the browser to the issuer with the
   state, the nonce and the digest of the verifier. The browser keeps all three values in a cookie for
   TRANSACTION_SECONDS. Nothing is stored on the server, so any instance can finish the sign-in.
2. The person signs in at the issuer, which sends the browser back with a code and the state.
3. `finish` compares the state with that of the cookie, so that an attacker cannot sign a person in with the attacker's
   code. It exchanges the code and the verifier for tokens, so a stolen code is worthless without the cookie. It checks
   that the ID token is signed by the issuer for this client and contains the nonce.

The tokens that the issuer returns are then checked like any other credential. The first token that has the audience,
the role and the tenant that the configuration asks for becomes the content of the sign-in cookie (`cookies.py`), which
is not the cookie of step 1.

Interruptions of each step:

| interruption | effect |
|---|---|
| the browser does not return, or the instance dies | nothing was stored; the cookie expires |
| the answer of the callback is lost | the code is used up; the person begins again |
| the callback is sent twice | the second callback fails: its cookie is cleared, or the issuer refuses its code |
| the issuer does not answer | 503 after FETCH_SECONDS (`jwks.py`); the person begins again |
| two tabs begin | the later tab wins: it replaces the cookie of the earlier tab, whose state is then refused |
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlencode, urlsplit

import msgspec

from tenure.access.jwks import FetchFailed, sender_to
from tenure.access.oidc import OidcVerifier
from tenure.config import OidcConfig
from tenure.errors import Overloaded, Unauthenticated, Unavailable
from tenure.telemetry.events import OidcSignInFailed, Telemetry

TRANSACTION_COOKIE = "tenure_sign_in"
TRANSACTION_SECONDS = 600
TRANSACTION_MAX_CHARACTERS = 300
RANDOM_BYTES = 32
EXCHANGES_MAX = 16
"""The most codes that are exchanged at the same time."""
FORM = "Content-Type: application/x-www-form-urlencoded"
_REFUSED = "the issuer did not accept the sign-in; begin again"
CLIENT_ERRORS = range(400, 500)

Send = Callable[[bytes], Awaitable[bytes]]


class Begun(msgspec.Struct, frozen=True):
    location: str
    """The URL at the issuer to which the browser is redirected."""
    transaction: str
    """The value of the cookie that the browser keeps until the callback. A secret."""

    def __repr__(self) -> str:
        return "Begun(…)"


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str | None = None

    def __repr__(self) -> str:
        return "_Tokens(…)"


class CodeFlow:
    def __init__(
        self, config: OidcConfig, verifier: OidcVerifier, telemetry: Telemetry, send: Send | None = None
    ) -> None:
        self._config = config
        self._verifier = verifier
        self._telemetry = telemetry
        self._send = send or sender_to(config.token_url or "", "POST", FORM)
        self._exchanging = 0
        self.issuer_host = urlsplit(config.issuer).hostname or config.issuer

    def begin(self, redirect_uri: str) -> Begun:
        state, nonce, verifier = (secrets.token_urlsafe(RANDOM_BYTES) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        parameters = {
            "response_type": "code",
            "client_id": self._config.client_id or "",
            "redirect_uri": redirect_uri,
            "scope": self._config.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = self._config.authorization_url or ""
        separator = "&" if urlsplit(address).query else "?"
        return Begun(f"{address}{separator}{urlencode(parameters)}", f"{state}.{nonce}.{verifier}")

    async def finish(
        self, redirect_uri: str, transaction: str, state: str, code: str, issuer: str | None
    ) -> Sequence[str]:
        """Return the tokens of the person who has signed in: the access token, if there is one, then the ID token.

        `issuer` is the issuer that the callback names, or None (RFC 9207). Raises `Unauthenticated`, `Unavailable` or
        `Overloaded`.
        """
        expected, _, rest = transaction.partition(".")
        nonce, _, verifier = rest.partition(".")
        if not (expected and nonce and verifier) or not hmac.compare_digest(expected.encode(), state.encode()):
            raise Unauthenticated("this sign-in was not begun here, or has expired; begin again")
        if issuer is not None and issuer != self._config.issuer:
            raise Unauthenticated("another issuer has answered this sign-in")
        tokens = await self._exchange(redirect_uri, code, verifier)
        await self._verifier.check_id_token(tokens.id_token, self._config.client_id or "", nonce)
        return [tokens.id_token] if tokens.access_token is None else [tokens.access_token, tokens.id_token]

    async def _exchange(self, redirect_uri: str, code: str, verifier: str) -> _Tokens:
        if self._exchanging >= EXCHANGES_MAX:
            raise Overloaded("too many sign-ins at the same time")
        secret = {} if self._config.client_secret is None else {"client_secret": self._config.client_secret}
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._config.client_id or "",
            "code_verifier": verifier,
            **secret,
        }
        self._exchanging += 1
        try:
            return msgspec.json.decode(await self._send(urlencode(form).encode()), type=_Tokens)
        except FetchFailed as error:
            self._telemetry.report(OidcSignInFailed(str(error)))
            if error.status in CLIENT_ERRORS:
                raise Unauthenticated(_REFUSED) from None
            raise Unavailable("the OIDC issuer cannot be reached") from None
        except OSError as error:
            self._telemetry.report(OidcSignInFailed(str(error)))
            raise Unavailable("the OIDC issuer cannot be reached") from None
        except (msgspec.DecodeError, RecursionError):
            self._telemetry.report(OidcSignInFailed("the response has no ID token"))
            raise Unauthenticated(_REFUSED) from None
        finally:
            self._exchanging -= 1
