"""Trains the base on public text, writes base.safetensors beside it, and its sha256 into federation.toml."""

import argparse
import hashlib
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from model import Transformer  # type: ignore[import-not-found]  # beside this file
from safetensors.torch import save_model
from text import ALPHABET, LENGTH, public, rows  # type: ignore[import-not-found]
from torch import nn

HERE = Path(__file__).parent


def trained(steps: int) -> nn.Module:
    """A transformer that knows plain sentences."""
    torch.manual_seed(0)
    model: nn.Module = Transformer(len(ALPHABET), LENGTH)
    (codes,) = rows(public(4000, 0)).tensors
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = codes[torch.randint(len(codes), (16,))]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    path, toml = HERE / "base.safetensors", HERE / "federation.toml"
    save_model(trained(parser.parse_args().steps), str(path))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    toml.write_text(re.sub(r'(?m)^sha256 = "[0-9a-f]*"', f'sha256 = "{sha256}"', toml.read_text()))
    print(f"base.safetensors: {path.stat().st_size:,} bytes, sha256 {sha256}, written into federation.toml")


if __name__ == "__main__":
    main()
