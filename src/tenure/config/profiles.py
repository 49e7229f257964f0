"""The profiles: named sets of defaults. The configuration file, `TENURE_…` variables and flags override these defaults,
setting by setting.
"""

from collections.abc import Mapping
from typing import Any

_PLAYBACK: Mapping[str, Any] = {
    "sessions": {"lease_seconds": 60, "heartbeat_seconds": 5},
    "jobs": {"expire-sessions": {"interval_seconds": 10}},
}
_TRANSCRIPTION: Mapping[str, Any] = {
    "sessions": {"lease_seconds": 60, "heartbeat_seconds": 5, "idle_seconds": 300},
    "jobs": {"expire-sessions": {"interval_seconds": 30}},
    "streams": {"handler": "transcription", "max_per_instance": 1000, "lease_seconds": 60, "idle_seconds": 300},
}

CAPACITY = "capacity"
PROFILES: Mapping[str, Mapping[str, Any]] = {CAPACITY: {}, "transcription": _TRANSCRIPTION, "playback": _PLAYBACK}
"""The settings of each profile. `capacity` changes no default: sessions of 30 days, without a lease."""
