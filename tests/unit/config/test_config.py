"""Settings: the table, the environment, the checks; and the small types that they use."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.config import TABLE, Settings
from transport.errors import InvalidUse
from transport.types import Access, Viability, format_bytes, parse_bytes


def test_defaults_need_no_environment():
    settings = Settings.from_env({})
    assert settings == Settings()
    assert settings.providers == ("shm", "verbs", "tcp")
    assert (settings.deadline, settings.inline_bytes) == (60.0, 64 << 10)


def test_the_table_names_every_setting():
    assert [row.attribute for row in TABLE] == [f.name for f in dataclasses.fields(Settings)]
    for row in TABLE:
        assert row.name == f"TRANSPORT_{row.attribute.upper()}"
        assert row.help
        assert row.kind


def test_every_default_reads_back_from_its_own_text():
    texts = {row.name: row.default for row in TABLE if row.default}
    assert Settings.from_env(texts) == Settings()


def test_the_environment_is_read():
    settings = Settings.from_env(
        {
            "TRANSPORT_CHUNK_BYTES": "2 MiB",
            "TRANSPORT_DEADLINE": "inf",
            "TRANSPORT_PROVIDERS": "tcp, shm",
            "TRANSPORT_SECRET_FILE": "/run/secret",
            "TRANSPORT_LOG_LEVEL": "DEBUG",
            "TRANSPORT_NOTIFY_DEPTH": "",
        }
    )
    assert settings.chunk_bytes == 2 << 20
    assert math.isinf(settings.deadline)
    assert settings.providers == ("tcp", "shm")
    assert settings.secret_file == Path("/run/secret")
    assert settings.log_level == "debug"
    assert settings.notify_depth == 64


def test_overrides_win_and_shield_from_a_bad_variable():
    assert Settings.from_env({"TRANSPORT_LIVENESS": "soon"}, liveness=3.0).liveness == 3.0
    with pytest.raises(InvalidUse, match="no setting named speed"):
        Settings.from_env({}, speed=1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DEADLINE", "soon"),
        ("DEADLINE", "0"),
        ("DEADLINE", "nan"),
        ("CONNECT_TIMEOUT", "inf"),
        ("LIVENESS", "-1"),
        ("CHUNK_BYTES", "1 parsec"),
        ("CHUNK_BYTES", "1"),
        ("INLINE_BYTES", "0.3"),
        ("STREAM_WINDOW", "0"),
        ("NOTIFY_DEPTH", "4097"),
        ("MAX_REGIONS", "1.5"),
        ("PROVIDERS", ","),
        ("PROVIDERS", "tcp,tcp"),
        ("VERBS_GID_INDEX", "-2"),
        ("ALLOW_PTRACER", "everybody"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_bad_values_name_their_variable(name, text):
    with pytest.raises(InvalidUse, match=f"TRANSPORT_{name} "):
        Settings.from_env({f"TRANSPORT_{name}": text})


def test_the_secret_does_not_show():
    settings = Settings.from_env({"TRANSPORT_SECRET": "hush-hush-hush-hush"})
    assert "hush" not in repr(settings)
    assert settings.shown("secret") == "(set)"
    assert Settings().shown("secret") == "(not set)"
    with pytest.raises(InvalidUse) as caught:
        Settings(secret=b"hush-hush-hush-hush")
    assert "hush" not in str(caught.value)


def test_shown_is_for_people():
    settings = Settings()
    assert settings.shown("chunk_bytes") == "1 MiB"
    assert settings.shown("providers") == "shm,verbs,tcp"
    assert settings.shown("secret_file") == ""


@given(st.integers(0, 1 << 50))
def test_sizes_in_bytes_read_back(count):
    assert parse_bytes(str(count)) == count
    assert parse_bytes(f"{count} B") == count


@given(st.integers(0, 1 << 20), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_formatted_whole_sizes_read_back(count, unit):
    size = parse_bytes(f"{count}{unit}")
    if count < 1024:
        assert parse_bytes(format_bytes(size)) == size


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_invalid_use(text):
    with contextlib.suppress(InvalidUse):
        assert parse_bytes(text) >= 0


def test_access():
    assert Access.parse("read-write") is Access.READ_WRITE
    assert Access.parse(Access.READ) is Access.READ
    assert str(Access.WRITE) == "write"
    assert (Access.READ | Access.WRITE) is Access.READ_WRITE
    for wrong in ("rw", "", None, 3):
        with pytest.raises(InvalidUse, match="access must be one of"):
            Access.parse(wrong)


def test_viability_is_true_when_usable():
    assert Viability(True, "there")
    assert not Viability(False, "absent", "install it")
