"""Settings: the table, the environment, the checks; and the small types that they use."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.config import TABLE, Settings, unknown_variables
from transport.errors import InvalidUse
from transport.types import Access, Viability, format_bytes, parse_bytes


def test_defaults_need_no_environment():
    settings = Settings.from_env({})
    assert settings == Settings()
    assert settings.providers == ("gpu_ipc", "shm", "verbs", "tcp", "staged")
    assert (settings.deadline, settings.inline_bytes) == (60.0, 64 << 10)


def test_the_table_names_every_setting():
    assert [row.attribute for row in TABLE] == [f.name for f in dataclasses.fields(Settings)]
    for row in TABLE:
        prefix = "" if row.attribute == "gpu_platform" else "TRANSPORT_"
        assert row.name == f"{prefix}{row.attribute.upper()}"
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


def test_other_processes_are_told_what_was_set(monkeypatch):
    monkeypatch.setenv("TRANSPORT_MESH_INLINE", "100")
    monkeypatch.setenv("TRANSPORT_HEARTBEAT", "3")
    assert Settings.from_env().for_others() == {}
    given = Settings(
        mesh_inline=123457,
        heartbeat=3.0,
        call_deadline=math.inf,
        providers=("shm", "tcp"),
        verbs_pkey=0x8001,
        secret="hush",
        secret_file=Path("/run/secret"),
    )
    told = given.for_others()
    assert not any("SECRET" in name or "hush" in text for name, text in told.items())
    there = Settings.from_env({"TRANSPORT_HEARTBEAT": "3", **told})
    assert there == dataclasses.replace(given, secret=None, secret_file=None)


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
        ("VERBS_GID_INDEX", "256"),
        ("VERBS_GID", "10.0.0"),
        ("VERBS_GID_SUBNET", "10.0.0.0/33"),
        ("VERBS_PKEY", "0x8000"),
        ("VERBS_PKEY", "0x10000"),
        ("VERBS_PKEY", "full"),
        ("VERBS_SERVICE_LEVEL", "16"),
        ("VERBS_TRAFFIC_CLASS", "256"),
        ("VERBS_HOP_LIMIT", "0"),
        ("VERBS_MTU", "1500"),
        ("VERBS_TIMEOUT", "0"),
        ("VERBS_TIMEOUT", "32"),
        ("VERBS_RETRY_COUNT", "8"),
        ("VERBS_RNR_RETRY", "7"),
        ("VERBS_RNR_TIMER", "32"),
        ("VERBS_QPS_PER_PEER", "0"),
        ("VERBS_RAILS", "9"),
        ("VERBS_RECOVERY", "inf"),
        ("VERBS_IDLE_TIME", "0.0009"),
        ("VERBS_IDLE_TIME", "86401"),
        ("VERBS_PIECE_BYTES", "1KiB"),
        ("VERBS_DEPTH", "2"),
        ("VERBS_INLINE_BYTES", "8KiB"),
        ("VERBS_RELAXED_ORDERING", "maybe"),
        ("VERBS_DEVICES", "mlx5_0,mlx5_0"),
        ("VERBS_NIC_MAP", "gpu0"),
        ("VERBS_NIC_MAP", "gpu=mlx5_0"),
        ("VERBS_NIC_MAP", "gpu0=mlx5_0;gpu0=mlx5_1"),
        ("VERBS_NIC_MAP", "cpu1=mlx5_0"),
        ("ALLOW_PTRACER", "everybody"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_bad_values_name_their_variable(name, text):
    with pytest.raises(InvalidUse, match=f"TRANSPORT_{name} "):
        Settings.from_env({f"TRANSPORT_{name}": text})


def test_verbs_settings_are_read():
    settings = Settings.from_env(
        {
            "TRANSPORT_VERBS_DEVICES": "mlx5_0:1, ^mlx5_3",
            "TRANSPORT_VERBS_GID": "::ffff:10.0.0.7",
            "TRANSPORT_VERBS_GID_SUBNET": "10.1.2.3/16,fd00::/8",
            "TRANSPORT_VERBS_PKEY": "0x8001",
            "TRANSPORT_VERBS_MTU": "4096",
            "TRANSPORT_VERBS_RELAXED_ORDERING": "OFF",
            "TRANSPORT_VERBS_NIC_MAP": "GPU0=mlx5_0,mlx5_1; cpu:1=mlx5_2; 0000:0A:00.0=mlx5_3",
        }
    )
    assert settings.verbs_devices == ("mlx5_0:1", "^mlx5_3")
    assert settings.shown("verbs_gid") == "10.0.0.7"
    assert settings.shown("verbs_gid_subnet") == "10.1.0.0/16,fd00::/8"
    assert (settings.verbs_pkey, settings.shown("verbs_pkey")) == (0x8001, "0x8001")
    assert settings.verbs_relaxed_ordering == "off"
    assert settings.verbs_nic_map == (
        ("gpu0", ("mlx5_0", "mlx5_1")),
        ("cpu:1", ("mlx5_2",)),
        ("0000:0a:00.0", ("mlx5_3",)),
    )
    shown = {row.name: settings.shown(row.attribute) for row in TABLE if not row.hidden}
    assert Settings.from_env({name: text for name, text in shown.items() if text}) == settings


def test_misspelt_variables_are_named_once(caplog):
    """D2: a setting that nobody reads is told, with the name that was meant."""
    wrong = {"TRANSPORT_VERBS_GUID_INDEX": "3", "TRANSPORT_REQUIRE": "rdma", "PATH": "/bin"}
    assert unknown_variables(wrong) == {"TRANSPORT_VERBS_GUID_INDEX": "TRANSPORT_VERBS_GID_INDEX"}
    for _ in range(2):
        Settings.from_env(wrong)
    told = [record.getMessage() for record in caplog.records]
    nearest = "TRANSPORT_VERBS_GID_INDEX"
    assert told == [f"TRANSPORT_VERBS_GUID_INDEX is no setting; the nearest is {nearest}"]


def test_the_one_name_without_the_prefix_is_found_for_it():
    assert unknown_variables(["TRANSPORT_GPU_PLATFORM"]) == {
        "TRANSPORT_GPU_PLATFORM": "GPU_PLATFORM"
    }


def test_a_survey_tells_all_that_makes_no_sense_and_keeps_the_rest():
    environ = {"TRANSPORT_DEADLINE": "soon", "GPU_PLATFORM": "nvidia", "TRANSPORT_LIVENESS": "3"}
    settings, wrong = Settings.survey(environ)
    assert settings == Settings(liveness=3.0)
    assert wrong == {
        "TRANSPORT_DEADLINE": "must be seconds, or inf, not 'soon'",
        "GPU_PLATFORM": "must be any, cuda, rocm or none, not 'nvidia'",
    }
    assert Settings.survey({}) == (Settings(), {})


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
    assert settings.shown("providers") == "gpu_ipc,shm,verbs,tcp,staged"
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
