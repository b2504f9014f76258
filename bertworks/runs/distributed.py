"""The processes of a distributed training, as torchrun starts them, and the error if one of them is lost."""

import os
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed as dist

from bertworks.errors import BertworksError, UsageError


class Processes:
    """The processes that torchrun started, or one process. The first one prepares alone; then all join a group."""

    def __init__(self, device: torch.device):
        self.count, rank = (
            int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0"))
        )
        self.first, self.device = rank == 0, device
        if self.count > 1 and dist.is_initialized():
            raise BertworksError("a process group exists already", hint="let the training create it")

    def refuse_to_share(self, items: int) -> None:
        """Raises UsageError if a step has fewer items than there are processes."""
        if items < self.count:
            raise UsageError(
                f"a step of {items} items cannot be shared by {self.count} processes", hint="start fewer processes"
            )

    def meet(self) -> None:
        """Waits for all processes, and creates the process group."""
        if self.count > 1:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(days=1))

    def wait(self) -> None:
        """Waits for all processes."""
        if self.count > 1:
            dist.barrier()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()
        if self.count > 1 and isinstance(error, RuntimeError) and _is_lost(error):
            raise BertworksError(
                "another process of this training ended; its own message says why",
                hint="type the same command again: it resumes from the last checkpoint",
            ) from error


def _is_lost(error: RuntimeError) -> bool:
    """Whether the error means that a process does not answer. Only NCCL has an exception for it; gloo has texts."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection" in str(error)


def refuse_many(what: str, hint: str) -> None:
    """Refuses several processes.

    Raises:
        UsageError: torchrun started several.
    """
    if (count := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise UsageError(f"{what}, and there are {count} processes", hint=hint)
