"""What verbs have in common that ask a running supervisor for something."""

from __future__ import annotations

import os

import pytest

from supervisor.cli.asking import who_asks

NAMELESS = 2**31 - 7
"""A user that no machine has a name for, as of a pod with `runAsUser`."""


def test_a_user_without_a_name_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: NAMELESS)
    assert who_asks() == f"user {NAMELESS} on {os.uname().nodename}"
