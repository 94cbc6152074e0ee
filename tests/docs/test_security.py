"""docs/security.md says of thresholds and messages what the code does."""

import re
from dataclasses import fields
from pathlib import Path

from privacy.secagg import keys
from privacy.secagg.messages import Advert, Consent, Delivery, Header, Message, Opening, Shares, Survivors
from privacy.secagg.terms import KIND, threshold

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def rows(head: str) -> list[list[str]]:
    """The cells of the table that begins so."""
    table = PAGE[PAGE.index(head) :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_each_threshold_bears_what_the_page_says() -> None:
    """t = floor(2n/3) + 1; two sets of t share 2t - n sites; a sum must hold two sites that are no traitors."""
    found = [tuple(map(int, row)) for row in rows("| n sites |")]
    assert len(found) > 10
    for n, t, dropouts, traitors in found:
        assert t == threshold(n)
        assert dropouts == n - t
        assert traitors == min(2 * t - n - 1, t - 2)


MESSAGES: dict[str, Message] = {
    "advert": Advert(1, bytes(32), bytes(32), bytes(32), (), bytes(64)),
    "shares": Shares(1, bytes(32), ()),
    "delivery": Delivery(1, bytes(32), ()),
    "upload": Header(1, bytes(32)),
    "survivors": Survivors(bytes(32), ()),
    "consent": Consent(1, bytes(64)),
    "opening": Opening(1, bytes(32), (), ()),
}


def test_each_message_has_the_label_and_the_fields_of_the_page() -> None:
    """Lists are empty here: two bytes of count. Those of an upload follow it, and are none of its own."""
    told = {row[0]: row[1:] for row in rows("| message |")}
    assert told.pop("terms")[0] == _shown(KIND)
    assert told.keys() == MESSAGES.keys()
    for name, message in MESSAGES.items():
        label, said = told[name]
        parts = [part for part in said.split("; ") if not part.startswith(("scalars", "values"))]
        assert label == _shown(message.KIND)
        assert len(parts) == len(fields(message))
        sizes = [2 if part.startswith("list") else int(part.split()[-1]) for part in parts]
        assert len(message.to_bytes()) == len(message.KIND) + sum(sizes)
    entries = {
        name: [int(size) for size in re.findall(r" (\d+)", told[name][1].split("list", 1)[1])]
        for name in told
        if "list" in told[name][1]
    }
    assert entries["shares"] == entries["delivery"] == [2, keys.SEALED]
    assert entries["opening"] == [2, 33, 2, 33]
    assert entries["survivors"] == [2]


def test_each_label_of_what_is_derived_or_signed_is_on_the_page() -> None:
    for label in (keys.ADVERT, keys.CONSENT, keys.COMMITMENT, keys.SESSION, keys.SHARE, keys.PAIR, keys.SELF):
        assert _shown(label) in PAGE
    advert = MESSAGES["advert"]
    assert isinstance(advert, Advert)
    assert len(advert.signed(bytes(32))) == len(keys.ADVERT) + 32 + 100


def _shown(label: bytes) -> str:
    return "`" + label.decode().replace("\n", r"\n") + "`"
