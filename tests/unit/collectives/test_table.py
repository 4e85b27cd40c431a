"""The table of carriers: what is written is read, what is no table is refused, who wins."""

from __future__ import annotations

import pytest

from transport.collectives import table
from transport.collectives.card import Rule
from transport.collectives.choice import Choice
from transport.errors import InvalidUse


def test_a_table_is_read_as_it_was_written(tmp_path, monkeypatch):
    found = [Rule("broadcast", "cpu", 4096, "onesided", 8, True), Rule("*", "cuda", 0, "nccl")]
    table.write(tmp_path / "table", found)
    assert list(table.read(tmp_path / "table")) == found
    monkeypatch.setenv("TRANSPORT_COLLECTIVES_TABLE", str(tmp_path / "table"))
    assert list(table.rules()) == [*table.DEFAULT, *found]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": 2, "rules": []}',
        '{"schema": 1, "rules": [{"kind": "broadcast"}]}',
        '{"schema": 1, "rules": [{"kind": "a", "device": "cpu", "least": -1, "carrier": "b"}]}',
    ],
)
def test_what_is_no_table_is_refused(tmp_path, text):
    file = tmp_path / "table"
    file.write_text(text)
    with pytest.raises(InvalidUse, match="table"):
        table.read(file)


def test_a_table_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidUse, match="cannot be read"):
        table.read(tmp_path / "none")


def test_rules_are_learnt_from_the_fastest():
    times = {
        1024: {"gloo": 1.0, "onesided": 2.0},
        4096: {"gloo": 3.0, "onesided": 2.0},
        16384: {"gloo": 9.0, "onesided": 4.0},
    }
    assert table.learn("broadcast", "cpu", times, ranks=4, near=True) == [
        Rule("broadcast", "cpu", 0, "gloo", 4, True),
        Rule("broadcast", "cpu", 4096, "onesided", 4, True),
    ]


class _Group:
    """As much of one as the choice looks at."""

    def __init__(self, size, one_machine):
        self.size, self.one_machine = size, one_machine


@pytest.mark.parametrize(
    ("size", "near", "names"),
    [
        (4, True, ["onesided", "gloo"]),
        (9, True, ["gloo", "onesided"]),
        (4, False, ["gloo", "onesided"]),
    ],
)
def test_rules_are_for_groups_of_their_size_and_place(size, near, names):
    torch = pytest.importorskip("torch")
    from transport.collectives.call import Call, Kind

    source = torch.empty(16 << 20, dtype=torch.uint8)
    call = Call(Kind.BROADCAST, (source,), ())
    assert list(Choice(table.DEFAULT).of(_Group(size, near)).carriers(call)) == names
