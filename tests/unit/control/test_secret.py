"""Where the secret comes from, who may read it, and that it never shows."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import pytest

from transport.config import Settings
from transport.control import secret as s
from transport.control.secret import Secret, resolve
from transport.errors import InvalidUse, Unavailable

TEXT = "sesame-sesame-sesame"


def proof(secret):
    return secret.proof(b"label", b"transcript")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "tensor-transport" / "secret"


def keep(path, text=TEXT, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_all_sources_of_the_same_text_agree(tmp_path):
    path = keep(tmp_path / "s", TEXT + "\n")
    expected = proof(Secret(TEXT.encode()))
    assert proof(resolve(TEXT, Settings())) == expected
    assert proof(resolve(TEXT.encode(), Settings())) == expected
    assert proof(resolve(path, Settings())) == expected
    assert proof(resolve(None, Settings(secret=TEXT))) == expected
    assert proof(resolve(None, Settings(secret_file=path))) == expected


def test_the_argument_wins_over_the_variable_and_that_over_the_file(tmp_path):
    path = keep(tmp_path / "s", "x" * 20)
    settings = Settings(secret="y" * 20, secret_file=path)
    assert proof(resolve("z" * 20, settings)) == proof(Secret(b"z" * 20))
    assert proof(resolve(None, settings)) == proof(Secret(b"y" * 20))
    assert resolve(False, settings) is None


def test_proofs_differ_by_secret_label_and_transcript():
    one, two = Secret(b"1" * 16), Secret(b"2" * 16)
    proofs = {
        one.proof(b"a", b"t"),
        two.proof(b"a", b"t"),
        one.proof(b"b", b"t"),
        one.proof(b"a", b"u"),
    }
    assert len(proofs) == 4
    assert all(len(p) == 32 for p in proofs)


def test_it_never_shows():
    secret = Secret(TEXT.encode())
    assert "sesame" not in repr(secret) + str(secret) + str(vars(type(secret)))
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)


@pytest.mark.parametrize("source", [32, True, 1.5, ["x" * 32], object()])
def test_a_number_is_no_secret(source):
    with pytest.raises(InvalidUse, match=f"not {type(source).__name__}"):
        resolve(source, Settings())  # bytes(32) would be 32 zeros


@pytest.mark.parametrize("text", ["", "short", "x" * 4097])
def test_its_length_is_bounded_and_the_error_does_not_tell_it(text):
    with pytest.raises(InvalidUse, match="16 to 4096 bytes") as caught:
        resolve(text, Settings())
    assert text not in str(caught.value) or not text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666, 0o644, 0o610])
def test_a_file_that_others_can_use_is_refused_with_the_remedy(tmp_path, mode, monkeypatch):
    path = keep(tmp_path / "s", mode=mode)
    if path.stat().st_uid == 0:
        os.chown(path, 0, 0)
        if mode == 0o640:
            mode = 0o660  # root may share with a group for reading, never for writing
            path.chmod(mode)
    with pytest.raises(InvalidUse, match=rf"mode {mode:04o}.*chmod 600"):
        s.read_file(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of others")
def test_a_mounted_secret_of_root_may_be_read_by_its_group_but_nobody_elses_file_is_used(tmp_path):
    path = keep(tmp_path / "s", mode=0o440)
    assert s.read_file(path) == TEXT.encode()
    os.chown(path, 12345, 0)
    path.chmod(0o600)
    with pytest.raises(InvalidUse, match="another user"):
        s.read_file(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(InvalidUse, match="not a regular file"):
        s.read_file(tmp_path / "fifo")
    with pytest.raises(Unavailable, match="cannot be opened"):
        s.read_file(tmp_path / "absent")


def test_an_endless_file_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "s"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)
    with pytest.raises(InvalidUse, match="4096 bytes"):
        resolve(path, Settings())


def test_the_users_own_secret_is_made_once_private_and_random(home):
    first = proof(resolve(None, Settings()))
    assert proof(resolve(None, Settings())) == first
    assert home.stat().st_mode & 0o777 == 0o600
    assert home.parent.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in home.parent.iterdir()] == ["secret"]
    home.unlink()
    assert proof(resolve(None, Settings())) != first


def test_many_first_uses_at_once_agree(home):
    found, barrier = [], threading.Barrier(8)

    def use():
        barrier.wait()
        found.append(proof(resolve(None, Settings())))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [p.name for p in home.parent.iterdir()] == ["secret"]


def test_a_folder_where_others_write_is_refused(home):
    resolve(None, Settings())
    home.parent.chmod(0o777)
    with pytest.raises(InvalidUse, match="chmod 700"):
        resolve(None, Settings())


def test_a_planted_link_is_not_followed(home, tmp_path):
    """What the user's own file should be must be a file there, not a way to another one."""
    home.parent.mkdir(mode=0o700)
    home.symlink_to(keep(tmp_path / "other"))
    with pytest.raises((InvalidUse, Unavailable)):
        resolve(None, Settings())


def test_no_place_for_it_is_unavailable_with_the_ways_out(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    with pytest.raises(Unavailable, match="TRANSPORT_SECRET_FILE"):
        resolve(None, Settings())


def test_a_relative_state_home_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert s.user_file() == Path(tmp_path, ".local/state/tensor-transport/secret")


def test_a_folder_is_no_secret_file(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InvalidUse, match="not a regular file"):
        s.read_file(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
