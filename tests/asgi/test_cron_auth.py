"""Who may trigger a cron: two secrets, each of which lets nobody pass while it is not set, and which nothing shows."""

import hmac
import logging
import os

import pytest

from a2asgi import A2, ConfigurationError, MemoryStore
from a2asgi.cron_auth import CronSecrets
from a2core import ScheduleRequest

SIGNING = "hunter2-signing"
BEARER = "hunter2-bearer"
BOTH = CronSecrets(SIGNING, BEARER)
NEITHER = CronSecrets(None, None)
SLOT_MS = 1_780_315_200_000


def signature(secret: str = SIGNING, message: str = f"cron:report\n{SLOT_MS}") -> str:
    """As wire.md 10 says, computed apart from the core."""
    return f"sha256={hmac.digest(secret.encode(), message.encode(), 'sha256').hex()}"


# ── signed requests ──────────────────────────────────────────────────────────────────────


def test_a_signature_of_this_task_and_slot_holds() -> None:
    expected = ScheduleRequest("cron:report", SLOT_MS)
    assert expected == BOTH.signed("cron:report", str(SLOT_MS), signature())
    other = CronSecrets("ключ 🔑", None)
    assert expected == other.signed("cron:report", str(SLOT_MS), signature("ключ 🔑"))
    named = signature(message=f"maintenance:täglich\n{SLOT_MS}")
    assert ScheduleRequest("maintenance:täglich", SLOT_MS) == BOTH.signed("maintenance:täglich", str(SLOT_MS), named)


@pytest.mark.parametrize(
    ("slot", "signed"),
    [
        pytest.param(None, signature(), id="no-slot"),
        pytest.param(str(SLOT_MS), None, id="no-signature"),
        pytest.param(None, None, id="neither"),
        pytest.param("", signature(message="cron:report\n"), id="empty-slot"),
        pytest.param(f" {SLOT_MS}", signature(message=f"cron:report\n {SLOT_MS}"), id="blank-before"),
        pytest.param(f"{SLOT_MS}.0", signature(message=f"cron:report\n{SLOT_MS}.0"), id="fraction"),
        pytest.param(f"+{SLOT_MS}", signature(message=f"cron:report\n+{SLOT_MS}"), id="plus"),
        pytest.param("-60000", signature(message="cron:report\n-60000"), id="minus"),
        pytest.param("1e12", signature(message="cron:report\n1e12"), id="exponent"),
        pytest.param("\uff11\uff17", signature(message="cron:report\n\uff11\uff17"), id="wide-digits"),
        pytest.param("9" * 17, signature(message="cron:report\n" + "9" * 17), id="too-many-digits"),
        pytest.param(str(SLOT_MS + 60_000), signature(), id="another-slot"),
        pytest.param(str(SLOT_MS), signature(message=f"cron:other\n{SLOT_MS}"), id="another-task"),
        pytest.param(str(SLOT_MS), signature(message=f"maintenance:report\n{SLOT_MS}"), id="another-kind"),
        pytest.param(str(SLOT_MS), signature(BEARER), id="the-other-secret"),
        pytest.param(str(SLOT_MS), signature(""), id="empty-secret"),
        pytest.param(str(SLOT_MS), signature().removeprefix("sha256="), id="no-prefix"),
        pytest.param(str(SLOT_MS), signature().replace("sha256", "SHA256"), id="upper-case-prefix"),
        pytest.param(str(SLOT_MS), "sha256=" + signature()[7:].upper(), id="upper-case-digits"),
        pytest.param(str(SLOT_MS), signature() + "0", id="too-long"),
        pytest.param(str(SLOT_MS), signature()[:-1], id="too-short"),
        pytest.param(str(SLOT_MS), signature() + "\n", id="line-feed"),
        pytest.param(str(SLOT_MS), "sha256=" + "é" * 64, id="not-ascii"),
        pytest.param(str(SLOT_MS), "", id="empty-signature"),
    ],
)
def test_any_other_request_is_refused(slot: str | None, signed: str | None) -> None:
    assert None is BOTH.signed("cron:report", slot, signed)


@pytest.mark.parametrize("secret", ["None", "", SIGNING, "undefined"])
def test_without_a_secret_no_signature_holds(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not even one that is made with nothing; the log says what is not set."""
    assert None is NEITHER.signed("cron:report", str(SLOT_MS), signature(secret))
    [record] = caplog.records
    assert "A2_CRON_SECRET is not set" in record.getMessage()


# ── bearers ──────────────────────────────────────────────────────────────────────────────


def test_a_bearer_of_the_secret_is_let_pass() -> None:
    assert BOTH.bears(f"Bearer {BEARER}".encode())
    assert CronSecrets(None, "ключ").bears("Bearer ключ".encode())


@pytest.mark.parametrize(
    "authorization",
    [
        *(None, b"", b"Bearer", b"Bearer ", BEARER.encode(), b"Bearer  " + BEARER.encode()),
        *(f"bearer {BEARER}".encode(), f"Basic {BEARER}".encode(), f"Bearer {BEARER} ".encode()),
        *(f"Bearer {BEARER}x".encode(), f"Bearer {BEARER[:-1]}".encode(), f"Bearer {SIGNING}".encode()),
        *(b"Bearer undefined", b"Bearer null", b"Bearer None", b"Bearer \xff\xfe", b"\x00"),
    ],
)
def test_nobody_else_is(authorization: bytes | None) -> None:
    assert not BOTH.bears(authorization)


@pytest.mark.parametrize(
    "authorization", [None, b"", b"Bearer ", b"Bearer None", b"Bearer undefined", b"Bearer null", b"Bearer"]
)
def test_without_a_secret_nobody_is_whatever_he_bears(
    authorization: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The well-known mistake is to compare with what an unset variable turns into."""
    assert not NEITHER.bears(authorization)
    [record] = caplog.records
    assert "CRON_SECRET is not set" in record.getMessage()


# ── where they come from ─────────────────────────────────────────────────────────────────


def test_secrets_come_from_the_environment_or_from_the_caller() -> None:
    """An empty one is none, wherever it is from; each is only ever the one that it is named."""
    environment = {"A2_CRON_SECRET": SIGNING, "CRON_SECRET": BEARER}
    assert BOTH == CronSecrets.from_environment(None, environment)
    assert CronSecrets("mine", BEARER) == CronSecrets.from_environment("mine", environment)
    assert BOTH == CronSecrets.from_environment("", environment)
    assert CronSecrets(SIGNING, None) == CronSecrets.from_environment(None, {"A2_CRON_SECRET": SIGNING})
    assert CronSecrets(None, BEARER) == CronSecrets.from_environment(None, {"CRON_SECRET": BEARER})
    assert NEITHER == CronSecrets.from_environment("", {"A2_CRON_SECRET": "", "CRON_SECRET": ""})


@pytest.mark.parametrize("name", ["A2_CRON_SECRET", "CRON_SECRET"])
@pytest.mark.parametrize("secret", ["hunter2\n", " hunter2", "\t", "hunter2\r\n", " "])
def test_a_secret_that_no_header_could_carry_is_refused(name: str, secret: str) -> None:
    """A line feed at its end is what a shell's echo leaves there. The text shows the name, and not the secret."""
    with pytest.raises(ConfigurationError) as raised:
        CronSecrets.from_environment(None, {name: secret})
    assert str(raised.value).startswith(f"{name}: expected no white space")
    assert "hunter2" not in str(raised.value)


def test_an_app_reads_them_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2_CRON_SECRET", SIGNING)
    monkeypatch.setenv("CRON_SECRET", BEARER)
    a2 = A2(store=MemoryStore())
    monkeypatch.delenv("A2_CRON_SECRET")
    monkeypatch.delenv("CRON_SECRET")
    assert BOTH == a2.cron_secrets
    assert NEITHER == A2(store=MemoryStore()).cron_secrets
    monkeypatch.setitem(os.environ, "CRON_SECRET", f"{BEARER}\n")
    with pytest.raises(ConfigurationError):
        A2(store=MemoryStore())


def test_no_secret_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    a2 = A2(store=MemoryStore(), cron_secret=SIGNING)
    BOTH.signed("cron:report", str(SLOT_MS), signature(BEARER))
    BOTH.bears(b"Bearer wrong")
    NEITHER.signed("cron:report", str(SLOT_MS), signature())
    NEITHER.bears(f"Bearer {BEARER}".encode())
    shown = f"{a2!r} {a2.cron_secrets!r} {BOTH!r} {BOTH} {caplog.text}"
    assert "CronSecrets()" in shown
    assert "hunter2" not in shown
    assert signature() not in shown
