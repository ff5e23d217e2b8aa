"""Who may trigger a cron from outside: the two secrets, and nobody while one is not set."""

import hmac
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from a2asgi.errors import ConfigurationError
from a2core import ScheduleRefusal, ScheduleRequest, check_schedule_request

log: logging.Logger = logging.getLogger("a2asgi.cron_auth")


@dataclass(frozen=True, slots=True)
class CronSecrets:
    """`signing` signs schedule requests (wire.md 10); `bearer` is what Vercel Cron sends as it is."""

    signing: str | None = field(repr=False)
    bearer: str | None = field(repr=False)

    @classmethod
    def from_environment(cls, signing: str | None, environment: Mapping[str, str] = os.environ) -> Self:
        """`signing`, or A2_CRON_SECRET, and CRON_SECRET, which is Vercel's name. An empty one is none.

        Raises ConfigurationError for a secret with white space around it: no sender could send it in a header.
        """
        found = {
            "A2_CRON_SECRET": signing or environment.get("A2_CRON_SECRET") or None,
            "CRON_SECRET": environment.get("CRON_SECRET") or None,
        }
        for name, secret in found.items():
            if secret is not None and secret != secret.strip():
                raise ConfigurationError(f"{name}: expected no white space at its ends; set it again without")
        return cls(*found.values())

    def signed(self, task_id: str, slot: str | None, signature: str | None) -> ScheduleRequest | None:
        """The slot that a signed request names; None where it is not ours to run."""
        if self.signing is None:
            log.warning("%s was not triggered: A2_CRON_SECRET is not set, so no signature can hold", task_id)
            return None
        request = check_schedule_request(self.signing, task_id, slot, signature)
        return None if isinstance(request, ScheduleRefusal) else request

    def bears(self, authorization: bytes | None) -> bool:
        """Whether this is `Bearer` and the secret, compared in constant time."""
        if self.bearer is None:
            log.warning("a cron was not triggered: CRON_SECRET is not set, so nobody is who should")
            return False
        return hmac.compare_digest(f"Bearer {self.bearer}".encode(), authorization or b"")
