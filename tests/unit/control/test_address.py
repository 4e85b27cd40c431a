"""Addresses: what is read, what is refused, in which order they are tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.control.address import (
    TcpAddress,
    UnixName,
    UnixPath,
    in_order,
    is_unix,
    parse,
    parse_all,
)
from transport.errors import InvalidUse


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:5000", TcpAddress("127.0.0.1", 5000)),
        ("trainer-0.cluster.local:0", TcpAddress("trainer-0.cluster.local", 0)),
        ("[::1]:65535", TcpAddress("::1", 65535)),
        ("[fe80::1%eth0]:7", TcpAddress("fe80::1%eth0", 7)),
        ("unix:/run/x.sock", UnixPath("/run/x.sock")),
        ("unix:@tensor-transport/00ff", UnixName("tensor-transport/00ff")),
    ],
)
def test_reads_and_writes(text, address):
    assert parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":5000",
        "host:port",
        "host:65536",
        "host:-1",
        "host:\u0663",
        "::1:5000",
        "[::1]5000",
        "[host]:1",
        "http://host:1",
        "unix:",
        "unix:@",
        "unix:relative",
        "unix:/a\0b",
        "unix:/" + "x" * 107,
        "unix:@" + "\u00e9" * 54,
        "unix:@\udcff\ud800",
        "x" * 301,
    ],
)
def test_refuses_and_names_the_text(text):
    with pytest.raises(InvalidUse) as caught:
        parse(text)
    assert repr(text[:300])[1:-1] in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        address = parse(text)
    except InvalidUse:
        return
    assert parse(str(address)) == address


def test_sockaddr_of_unix_addresses():
    assert parse("unix:/a").sockaddr == "/a"
    assert parse("unix:@a").sockaddr == "\0a"


def test_unix_is_tried_first_or_last_and_the_rest_keeps_its_order():
    texts = ["h:1", "unix:@a", "g:2", "unix:/b", "h:1"]
    addresses = parse_all(texts)
    assert [str(a) for a in in_order(addresses, prefer_unix=True)] == [
        "unix:@a",
        "unix:/b",
        "h:1",
        "g:2",
    ]
    assert [is_unix(a) for a in in_order(addresses, prefer_unix=False)] == [0, 0, 1, 1]
