"""What the page on adapters shows is true: its blocks run, and PEFT's names are what it says they are."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_model
from torch import nn

import hansa
from hansa.base import Base
from hansa.workbench import Workbench

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
CPU = torch.device("cpu")


def test_the_hand_written_adapter_shares_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 2 beside a layer of 64 x 512: 2 x 576 numbers."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(BLOCKS[0], names)
    exec(BLOCKS[-1], names)
    assert capsys.readouterr().out == "1152 of 39562\n"
    assert BLOCKS[-1].rstrip().endswith("# 1152 of 39562")


def test_a_peft_model_shares_peft_s_own_tensors_and_takes_the_base_from_before(tmp_path: Path) -> None:
    """What goes into the layout is what PEFT itself saves; the base's file is of the model without adapters."""
    peft = pytest.importorskip("peft", reason="needs PEFT: pip install 'hansa[peft]'")

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.v, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(self.q(x) * self.v(x))
            return out

    class Notes(hansa.Task):
        trainable_only = True

        def model(self) -> nn.Module:
            made: nn.Module = peft.get_peft_model(Body(), peft.LoraConfig(r=2, target_modules=["q", "v"]))
            return made

    torch.manual_seed(9)
    body, path = Body(), tmp_path / "base.safetensors"
    save_model(body, str(path))
    bench = Workbench(Notes(), (), 0, CPU, Base(path, hashlib.sha256(path.read_bytes()).hexdigest()))
    model: Any = bench.model
    own = peft.get_peft_model_state_dict(model)
    assert {e.name.replace(".default.", ".") for e in bench.shared.floats} == own.keys()
    x = torch.randn(4, 8)
    assert torch.equal(model(x), body(x))  # LoRA begins at zero: it is the base
    params = torch.randn(bench.shared.size)
    bench.save(params, bench.start[1], tmp_path / "model.safetensors")
    bench.load(params, bench.start[1], {})
    again: Any = Notes().model()
    again.load_state_dict({n: t for n, t in model.state_dict().items() if ".lora_" not in n}, strict=False)
    again.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert torch.equal(again(x), model(x))
    again.save_pretrained(tmp_path / "adapter")
    assert torch.equal(peft.PeftModel.from_pretrained(body, tmp_path / "adapter")(x), model(x))
