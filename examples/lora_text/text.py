"""Made-up text: plain sentences that anyone may have, and the notes of three wards in a shorthand of their own."""

import random

import torch
from torch.utils.data import TensorDataset

LENGTH = 64  # characters of a row
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789.,:/-"
CODE = {letter: number for number, letter in enumerate(ALPHABET)}

WHO = ["the nurse", "the doctor", "a patient", "the old man", "a woman", "the child", "his sister", "the visitor"]
DID = ["walked to", "came from", "looked at", "asked about", "waited for", "wrote to", "talked of", "went back to"]
WHAT = ["the house", "the river", "a letter", "the garden", "the hospital", "a friend", "the market", "the window"]
WHEN = ["in the morning", "after lunch", "at night", "last week", "before the rain", "on monday", "twice a day"]

WARDS = {
    "cardiology": (["cp", "sob", "palp", "syncope"], ["asa 100 od", "bb 25 bd", "acei 5 od", "statin 40 on"]),
    "surgery": (["rif pain", "n/v", "hernia r", "wound ooze"], ["abx iv tds", "nbm", "lmwh sc", "pcm 1g qds"]),
    "paediatrics": (["fever", "cough", "rash", "ear pain l"], ["pcm 15/kg", "ors", "amox 50/kg", "neb prn"]),
}


def public(sentences: int, seed: int) -> str:
    """Sentences of nobody's."""
    draw = random.Random(seed)
    parts = (WHO, DID, WHAT, WHEN)
    return "\n".join(" ".join(draw.choice(part) for part in parts) + "." for _ in range(sentences))


def notes(ward: str, number: int, seed: int) -> str:
    """A ward's notes."""
    draw, (signs, drugs) = random.Random(f"{ward} {seed}"), WARDS[ward]

    def note() -> str:
        seen = f"pt {draw.randint(1, 99)}{draw.choice('mf')} c/o {draw.choice(signs)} {draw.randint(1, 9)}/7"
        found = f"bp {draw.randint(95, 180)}/{draw.randint(50, 99)} hr {draw.randint(50, 130)}"
        return f"{seen}, {found}. rx {draw.choice(drugs)}, rv {draw.randint(1, 6)}/52"

    return "\n".join(note() for _ in range(number))


def rows(text: str) -> TensorDataset:
    """Windows of a text, [rows, LENGTH + 1] int64: each character is to be told from those before it."""
    codes = torch.tensor([CODE[letter] for letter in text])
    return TensorDataset(codes.unfold(0, LENGTH + 1, LENGTH).clone())
