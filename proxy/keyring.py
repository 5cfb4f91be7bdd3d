"""The keyring: what a sidecar is given in secret. The journal's vault, the admin token, the key of the events' sink.

From the environment; what a sidecar by itself needs besides is made once, and kept in files only their owner reads.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from proxy.chance import Chance
from proxy.core.errors import SettingsError
from proxy.settings import ADMIN_TOKEN, ENCRYPTION_KEYS, EVENTS_SECRET, IDENTITY_SECRET, Settings, kept_secret
from proxy.vault import Vault, read_identity_secret, read_ring


def vault_for(settings: Settings, environment: Mapping[str, str], chance: Chance) -> Vault:
    """The vault of this journal: secrets from the environment, or those that the journal keeps beside itself."""

    def text_of_key() -> str:
        return base64.b64encode(chance.key()).decode()

    path = settings.journal_path
    if path is None:
        missing = [name for name in (IDENTITY_SECRET, ENCRYPTION_KEYS) if not environment.get(name)]
        if missing:
            raise SettingsError(
                f"--journal {settings.journal_shown}: set {' and '.join(missing)}, the "
                "same for every sidecar that shares it: else none would recognise another's payments"
            )
        ring = read_ring(environment[ENCRYPTION_KEYS])
        return Vault(read_identity_secret(environment[IDENTITY_SECRET]), ring, chance.nonce)
    secret = environment.get(IDENTITY_SECRET) or kept_secret(path.with_name(f"{path.name}.identity"), text_of_key)
    keys = environment.get(ENCRYPTION_KEYS) or kept_secret(
        path.with_name(f"{path.name}.keys"), lambda: f"k1:{text_of_key()}"
    )
    return Vault(read_identity_secret(secret), read_ring(keys), chance.nonce)


def admin_token(settings: Settings, environment: Mapping[str, str], chance: Chance) -> str:
    """The token of the admin port: from the environment, or made once and kept where `paywitness ops` looks for it."""
    return environment.get(ADMIN_TOKEN) or kept_secret(settings.home / "admin-token", chance.token)


def events_secret(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """What events are signed by. Unsigned ones could be anybody's, so a sink needs its secret."""
    if settings.events is None:
        return None
    secret = environment.get(EVENTS_SECRET)
    if not secret:
        raise SettingsError(f"--events {settings.events}: set {EVENTS_SECRET}, by which its receiver knows us")
    return secret.encode()
