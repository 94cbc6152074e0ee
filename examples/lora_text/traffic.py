"""Runs the federation and counts what goes up: the bytes of each update, beside those of the whole model."""

import json
from pathlib import Path

from hansa.config import load
from hansa.layout import Layout
from hansa.records import Plan, Reply
from simulations.configured import federation_of

HERE = Path(__file__).parent


def main() -> None:
    federation, sent = federation_of(load(HERE / "federation.toml")), set[int]()

    def watch(plan: Plan, reply: Reply) -> None:
        if reply.upload:
            sent.add(sum(vector.nbytes for vector in reply.upload.values()))

    history = federation.try_out(watch=watch)
    (up,) = sent
    whole = 4 * Layout.of(history.model()).size - up  # without the adapters
    scores = history.curve("accuracy", split="valid")
    first, last = float(scores.iloc[0]), float(scores.iloc[-1])
    print(f"up: {up:,} bytes a site and round; the whole model: {whole:,}; {up / whole:.2%}")
    print(f"next character: {first:.1%} right with the base alone, {last:.1%} with adapters")
    print(f"RESULT {json.dumps({'up': up, 'whole': whole, 'base': first, 'adapted': last})}")


if __name__ == "__main__":
    main()
