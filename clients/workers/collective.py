"""What ranks agree on beside their training."""

import torch
import torch.distributed as dist


def least(number: int) -> int:
    """The least of the ranks' numbers, each of whom must ask; one that is alone has its own."""
    if not dist.is_initialized():
        return number
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    found = torch.tensor(number, device=device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found)
