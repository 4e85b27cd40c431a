"""The job's shared secret: where it comes from, and the proofs made with it.

May import config and errors. The bytes stay inside Secret; no repr, log line or exception shows
them.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from transport.config import Settings

MIN_BYTES = 16
MAX_BYTES = 4096
_ADVICE = "make one with: python -c 'import secrets; print(secrets.token_hex(32))'"

Source: TypeAlias = bytes | str | Path | Literal[False] | None


class Secret:
    """A key that does not show itself."""

    __slots__ = ("__key",)

    def __init__(self, text: bytes) -> None:
        if not MIN_BYTES <= len(text) <= MAX_BYTES:
            need = f"the shared secret must have {MIN_BYTES} to {MAX_BYTES} bytes, not {len(text)}"
            raise InvalidUse(f"{need}; {_ADVICE}")
        # One key per purpose: what somebody else signs with the same text does not fit here.
        self.__key = hmac.digest(text, b"tensor-transport handshake 1", "sha256")

    def proof(self, label: bytes, transcript: bytes) -> bytes:
        """32 bytes that only a holder of the secret can make for this label and transcript."""
        return hmac.digest(self.__key, label + b"\0" + transcript, "sha256")

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> str:
        raise TypeError(
            "a secret is not pickled; pass it as an argument, a file or TRANSPORT_SECRET"
        )


def resolve(source: Source, settings: Settings) -> Secret | None:
    """Argument, else TRANSPORT_SECRET, else TRANSPORT_SECRET_FILE, else the user's own file.

    False means none: then only unix sockets of the same user are served and used. Raises
    InvalidUse or Unavailable with the remedy.
    """
    if source is False:
        return None
    if isinstance(source, Path):
        return Secret(read_file(source))
    if source is not None:
        return Secret(source.encode() if isinstance(source, str) else _as_bytes(source))
    if settings.secret is not None:
        return Secret(settings.secret.encode())
    if settings.secret_file is not None:
        return Secret(read_file(settings.secret_file))
    return Secret(_user_secret())


def _as_bytes(source: object) -> bytes:
    if isinstance(source, (bytes, bytearray)):
        return bytes(source)  # of a number it would make that many zeros
    kind = type(source).__name__
    raise InvalidUse(f"secret= takes bytes, text, a Path or False, not {kind}")


def read_file(path: Path, *, follow: bool = True) -> bytes:
    """The secret in a file that nobody else can read; the checks are on what was opened."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError as error:
        reason = f"the secret file {path} cannot be opened: {error.strerror}"
        raise Unavailable(reason, "name another with TRANSPORT_SECRET_FILE") from None
    try:
        _check_private(path, os.fstat(fd))
        text = os.read(fd, MAX_BYTES + 2)
    finally:
        os.close(fd)
    return text.rstrip(b"\r\n")


def _check_private(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise InvalidUse(f"the secret file {path} is not a regular file")
    if facts.st_uid not in (0, os.geteuid()):
        raise InvalidUse(f"the secret file {path} belongs to another user (uid {facts.st_uid})")
    # A mounted secret is root's and is given to its users through their group: mode 0440.
    forbidden = 0o037 if facts.st_uid == 0 else 0o077
    if facts.st_mode & forbidden:
        mode = f"{facts.st_mode & 0o777:04o}"
        raise InvalidUse(f"others can use the secret file {path} (mode {mode}); chmod 600 {path}")


def user_file() -> Path:
    """Where the user's own secret is kept."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        # The XDG base directory specification: a relative path is to be ignored.
        home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        raise Unavailable("this user has no home directory for a secret", _OTHERWISE) from None
    return home / "tensor-transport" / "secret"


_OTHERWISE = (
    "set TRANSPORT_SECRET_FILE or TRANSPORT_SECRET, or pass secret=; "
    "secret=False serves only unix sockets of this user"
)


def _user_secret() -> bytes:
    path = user_file()
    try:
        if not path.exists():
            _make(path)
        _check_folder(path.parent)
    except OSError as error:
        reason = f"the secret file {path} cannot be made: {error.strerror}"
        raise Unavailable(reason, _OTHERWISE) from None
    return read_file(path, follow=False)


def _check_folder(folder: Path) -> None:
    """Who may write in the folder could put another secret there."""
    facts = folder.stat()
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
        raise InvalidUse(f"others can write in {folder}, where the secret is; chmod 700 {folder}")


def _make(path: Path) -> None:
    """Whole or not at all: the file gets its name when it is complete; the first to do so wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, draft = tempfile.mkstemp(prefix=".secret-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(fd)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        Path(draft).unlink()
