"""Everything in Python that reads bytes or text from outside, against arbitrary input (H11).

Whatever comes, it is read, or refused by an error of this library, with memory in proportion to
what came. C's decoders have their targets in native/fuzz.
"""

from __future__ import annotations

import json
import pickle
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.config import TABLE, Settings
from transport.control import address, messages, secret
from transport.errors import InvalidUse, PeerError, PeerRefused, VersionMismatch
from transport.memory.remote import NATIVE, Owner, RemoteRegion
from transport.providers.shm.provider import _native_offer
from transport.providers.verbs import rails
from transport.providers.verbs.provider import _checked, _encode, _Offer
from transport.types import Access, Offer

RAIL = rails.RailFacts(0, "mlx5_0:1", bytes(range(16)), 64, 0, True, 2, 4096, 12.5, 0, 16, 16, True)
IDENTITY = messages.Identity(b"i" * 16, "trainer-0", 7, 64, ("unix:@a", "10.0.0.1:5000"))
OFFERS = (messages.ProviderOffer("shm", b"token", 2),)
OWNER = Owner.make(
    b"i" * 16,
    ["unix:@a", "10.0.0.1:5000"],
    NATIVE.pack(
        7, 3, b"k" * 16, 4096, 1 << 20, 0, 0, Access.READ_WRITE.value, *[0] * 8, 0, 0, 0, 1
    ),
)
REMOTE = RemoteRegion(OWNER, 64, "float32", (3, 4), (32, 8))

# Decoder, an encoded message that it accepts, and what it may raise.
DECODERS = {
    "hello": (
        lambda data: messages.decode_handshake(data, messages.Hello),
        messages.encode(messages.Hello(IDENTITY, b"n" * 32, b"w" * 16, True)),
        PeerRefused,
    ),
    "challenge": (
        lambda data: messages.decode_handshake(data, messages.Challenge),
        messages.encode(messages.Challenge(IDENTITY, b"n" * 32)),
        PeerRefused,
    ),
    "proven": (
        lambda data: messages.decode_handshake(data, messages.Proven),
        messages.encode(messages.Proven(b"p" * 32, b"body")),
        PeerRefused,
    ),
    "commit": (
        lambda data: messages.decode_proven(data, messages.Commit),
        messages.encode(messages.Commit(True, OFFERS, {"tcp": "left out"})),
        PeerRefused,
    ),
    "accept": (
        lambda data: messages.decode_proven(data, messages.Accept),
        messages.encode(messages.Accept(OFFERS, {"verbs": "no device"})),
        PeerRefused,
    ),
    "ready": (
        lambda data: messages.decode_proven(data, messages.Ready),
        messages.encode(messages.Ready(("shm", "tcp"), {"verbs": "no device"})),
        PeerRefused,
    ),
    "control": (
        messages.decode_control,
        messages.encode(messages.Ask(1, "lookup", b"name")),
        PeerRefused,
    ),
    "preamble": (
        lambda data: messages.check_preamble(data[: messages.PREAMBLE_BYTES]),
        messages.PREAMBLE,
        VersionMismatch,
    ),
    "shm offer": (
        lambda data: _native_offer(Offer(data, (3, 4))),
        msgspec.msgpack.encode((4096, b"t" * 16, 1 << 20)),
        PeerRefused,
    ),
    "verbs offer": (_checked, _encode(_Offer(2, 2, [RAIL])), PeerRefused),
    "handle": (RemoteRegion.from_bytes, REMOTE.to_bytes(), InvalidUse),
    "handle as JSON": (RemoteRegion.from_json, REMOTE.to_json().encode(), InvalidUse),
    "address": (
        lambda data: address.parse(data.decode("utf-8", "surrogateescape")),
        b"[fe80::1%eth0]:5000",
        InvalidUse,
    ),
}
EACH = pytest.mark.parametrize("name", DECODERS)

_LEAF = (
    st.none() | st.booleans() | st.floats() | st.binary(max_size=40) | st.text(max_size=40)
    | st.integers(-(1 << 63), (1 << 64) - 1)
)  # fmt: skip
_TREES = st.recursive(
    _LEAF,
    lambda inner: (
        st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=8), inner, max_size=6)
    ),
    max_leaves=30,
)


def _refused_or_read(name: str, data: bytes) -> None:
    """Nothing but the decoder's own error, and memory in proportion to the input."""
    decode, _, refusal = DECODERS[name]
    said = ""
    tracemalloc.start()
    try:
        decode(data)
    except refusal as error:
        said = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < (1 << 20) + 64 * len(data)
    assert len(said) < 2000, "an error is no place for a peer to write a book"


@EACH
def test_the_example_is_read(name):
    """Else the changed ones below would all fail at the same first check."""
    decode, good, _ = DECODERS[name]
    decode(good)


@EACH
@given(data=st.binary(max_size=600))
def test_any_bytes(name, data):
    _refused_or_read(name, data)


@EACH
@given(tree=_TREES)
def test_any_message(name, tree):
    """Well-formed as msgpack or JSON, and of any structure."""
    if "JSON" in name:
        _refused_or_read(name, json.dumps(tree, default=repr).encode("utf-8", "surrogatepass"))
    else:
        _refused_or_read(name, msgspec.msgpack.encode(tree))


@EACH
@given(data=st.data())
def test_any_field_replaced(name, data):
    """A good message with one part of it exchanged for anything, so that every check is reached."""
    good = DECODERS[name][1]
    codec = msgspec.json if "JSON" in name else msgspec.msgpack
    try:
        tree = codec.decode(good)
    except msgspec.MsgspecError:
        return  # no message, but text
    place = tree
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(place[key], (list, dict)) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = data.draw(_TREES)
    try:
        changed = codec.encode(tree)
    except (msgspec.MsgspecError, UnicodeEncodeError, ValueError, OverflowError):
        return
    _refused_or_read(name, changed)


@EACH
@given(data=st.data())
def test_changed_bytes(name, data):
    body = bytearray(DECODERS[name][1])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(body) - 1))
        how = data.draw(st.sampled_from(["set", "drop", "repeat"]))
        if how == "set":
            body[at] = data.draw(st.integers(0, 255))
        elif how == "drop" and len(body) > 1:
            del body[at]
        else:
            body[at:at] = body[at : at + 1] * data.draw(st.integers(1, 50))
    _refused_or_read(name, bytes(body))


_HUGE = {
    "deep list": b"\x91",
    "deep map": b"\x81\xa0",
    "deep JSON list": b"[",
    "deep JSON map": b'{"a":',
    "list of 4 G": b"\xdd\xff\xff\xff\xff",
    "map of 4 G": b"\xdf\xff\xff\xff\xff",
    "bytes of 4 G": b"\xc6\xff\xff\xff\xff",
    "bad text": b"\xa1\xff",
    "digits": b"1",
    "negative": b"\xff",
    "colons": b":",
}


@EACH
@pytest.mark.parametrize("unit", _HUGE.values(), ids=_HUGE)
@pytest.mark.parametrize("size", [50_000, messages.MAX_CONTROL])
def test_the_largest_that_a_peer_can_send(name, unit, size):
    """Deep, wide and lying about its length; also in the place of a part of a good message."""
    data = unit * (size // len(unit))
    _refused_or_read(name, data)
    good = DECODERS[name][1]
    for cut in range(1, len(good)) if size < messages.MAX_FRAME else (1, len(good) - 1):
        _refused_or_read(name, good[:cut] + data)
    if 0x90 <= good[0] < 0x9F:  # a short array that has one part more, which is skipped
        _refused_or_read(name, bytes([good[0] + 1]) + good[1:] + data)


@given(
    incarnation=st.binary(max_size=20),
    native=st.binary(min_size=NATIVE.size, max_size=NATIVE.size) | st.binary(max_size=200),
    addresses=st.lists(st.text(max_size=600), max_size=80),
    keys=st.binary(max_size=64),
    offset=st.integers(-(1 << 65), 1 << 65),
    dtype=st.none() | st.sampled_from(["float32", "uint8", "object", ""]),
    shape=st.lists(st.integers(-(1 << 65), 1 << 65), max_size=70),
    strides=st.none() | st.lists(st.integers(-(1 << 65), 1 << 65), max_size=70),
)
def test_a_handle_of_any_parts(incarnation, native, addresses, keys, offset, dtype, shape, strides):
    """As unpickling makes one: it is sound, and lies in its region, or it is refused."""
    try:
        owner = Owner.make(incarnation, addresses, native, keys)
        remote = RemoteRegion(owner, offset, dtype, shape, strides)
    except InvalidUse:
        return
    assert pickle.loads(pickle.dumps(remote)) == remote
    assert RemoteRegion.from_bytes(remote.to_bytes()) == remote
    assert 0 <= remote.nbytes <= owner.length


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.attribute)
@given(text=st.text(max_size=60) | st.from_regex(r"[-0-9a-fxKMGiB.:,;=/~^ ]{0,30}", fullmatch=True))
def test_any_text_of_a_setting(row, text):
    """Read, or refused with the variable's name; what was read can be shown."""
    _setting(row, text)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.attribute)
@pytest.mark.parametrize(
    "text", ["9" * 5000, "~nobody-has-this-name/x", "\0", "\ud800", "," * 5000]
)
def test_long_and_odd_settings(row, text):
    _setting(row, text)


def _setting(row, text):
    said = row.name
    try:
        settings = Settings.from_env({row.name: text})
        settings.shown(row.attribute)
    except InvalidUse as error:
        said = str(error)
    assert row.name in said


@given(facts=st.lists(st.builds(
    rails.RailFacts,
    number=st.integers(0, 7), name=st.text(max_size=8), gid=st.binary(min_size=16, max_size=16),
    prefix=st.integers(0, 128), lid=st.integers(0, 9), ethernet=st.booleans(),
    version=st.integers(0, 2), mtu=st.integers(0, 0xFFFF), rate=st.floats(0, 1e6),
    numa=st.integers(-1, 3), reads_out=st.integers(0, 2), reads_in=st.integers(0, 2),
), max_size=16))  # fmt: skip
def test_any_rails_of_a_peer_can_be_matched(facts):
    """What a peer may say of its rails, in whatever combination, gives lanes or a reason."""
    half = len(facts) // 2
    ours = [f for i, f in enumerate(facts[:half]) if f.number not in {g.number for g in facts[:i]}]
    try:
        theirs = rails.checked(facts[half:])
    except PeerError:
        return
    lanes = rails.match(ours, theirs)
    assert len(lanes) <= rails.MAX_LANES
    assert lanes or rails.mismatch(ours, theirs)


@given(st.binary(max_size=5000))
def test_any_content_of_a_secret_file(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("secret") / "file"
    file.write_bytes(data)
    file.chmod(0o600)
    said = ""
    try:
        secret.resolve(None, Settings(secret_file=file))
    except InvalidUse as error:
        said = str(error)
    assert len(data) < 16 or data not in said.encode("utf-8", "surrogateescape")
