"""A small transformer over characters, and LoRA by hand.

B = rows, T = characters of a row, D = width, H = heads, R = rank.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LAYERS = 96, 4, 4
RANK, ALPHA = 2, 8.0


class Block(nn.Module):
    """Attention, then two layers, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y = self.norm1(x_BTD)
        q, k, v = (layer(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x_BTD + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """Characters [B, T] to the logits of the next ones [B, T, letters]."""

    def __init__(self, letters: int, length: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, x_BT: Tensor) -> Tensor:
        x = self.token(x_BT) + self.place(torch.arange(x_BT.shape[1], device=x_BT.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.out(self.norm(x))
        return logits


class LoRA(nn.Module):
    """A layer that stays, plus alpha / R times a product of two thin matrices (Hu et al., ICLR 2022).

    The second is zero at the start, so that training begins at the base. The layer is called as in PEFT, so that the
    base's file fits without a word more.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.Linear(layer.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, layer.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + ALPHA / RANK * self.lora_B(self.lora_A(x))
        return out


def adapted(model: Transformer) -> Transformer:
    """The model, frozen, with LoRA on the queries and values of every block."""
    model.requires_grad_(False)
    for block in model.blocks:
        assert isinstance(block, Block)
        for name in ("q", "v"):
            setattr(block, name, LoRA(getattr(block, name)))
    return model
