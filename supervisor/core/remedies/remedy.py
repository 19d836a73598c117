"""What a retry can change, and in which order for which cause; every default is here, nothing is applied here.

A remedy either changes nothing that lasts (another try, an older generation) or stays in force for all attempts to
come, until it has failed or its owner forbids it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Remedy: TypeAlias = Literal[
    "restart",
    "older_generation",
    "skip_step",
    "lower_lr",
    "clip_gradients",
    "amp_off",
    "skip_data",
    "allocator",
    "conv2d_workspace",
    "half_batch",
    "smaller_images",
    "fewer_workers",
    "no_workers",
    "conv2d",
    "cudnn_off",
    "compile_off",
    "other_gpu",
    "cpu_profile",
    "reset_gpu",
    "reboot",
]
Ladder: TypeAlias = tuple[Remedy, ...]

WORDS: dict[str, str] = {
    "restart": "restart without changes",
    "older_generation": "resumed from an older checkpoint, where there is one",
    "skip_step": "steps whose gradients are not finite are skipped",
    "lower_lr": "learning rate lowered",
    "clip_gradients": "gradients clipped",
    "amp_off": "no automatic mixed precision",
    "skip_data": "the batches around the fault skipped",
    "allocator": "allocator set to split less and to release sooner",
    "conv2d_workspace": "workspace of the Conv2d patch capped",
    "half_batch": "half the batch, twice the accumulation",
    "smaller_images": "smaller images",
    "fewer_workers": "half the loader workers",
    "no_workers": "no loader workers, no pinned memory",
    "conv2d": "Conv2d without MIOpen",
    "cudnn_off": "MIOpen and cuDNN disabled",
    "compile_off": "compilation disabled",
    "other_gpu": "another GPU",
    "cpu_profile": "CPU profile",
    "reset_gpu": "GPU reset",
    "reboot": "machine rebooted",
}
"""What each one does, for people."""

PASSING = frozenset({"restart", "older_generation", "reset_gpu", "reboot"})
"""Remedies that change nothing beyond one launch."""
LAST_RESORTS = frozenset({"cpu_profile", "other_gpu", "smaller_images", "reset_gpu", "reboot"})
"""Remedies that always help and cost much: that one helped before does not bring it forward."""
ADDING_UP = frozenset({"non_finite", "oom_gpu", "oom_host", "fragmentation", "miopen"})
"""Causes whose remedies pull the same way, so that one that was not enough stays beside the next. For the others each
remedy is a guess of its own, and a wrong one is taken back."""
BY_THE_FRAMEWORK = frozenset({"half_batch", "smaller_images", "skip_data"})
"""Remedies that only a framework whose trainer the agent knows can be given."""
ASKED_AS = {"half_batch": "batch_factor", "smaller_images": "image_factor", "skip_data": "skip_batches"}
"""By which name a script of its own asks for one of these, and then has it too."""
BY_TORCH = frozenset({"skip_step", "lower_lr", "clip_gradients", "amp_off", "fewer_workers", "no_workers"})
"""Remedies that the agent gives to any PyTorch training."""
BY_THE_AGENT = BY_THE_FRAMEWORK | BY_TORCH | {"allocator", "cudnn_off"}
"""Remedies that only the agent can make, and tells of: where it told nothing, nothing was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """The table `[jobs.NAME.remedies]`: a ladder a cause, tried from its first remedy on, and how much each changes.

    A remedy that stands twice in a ladder is taken twice.
    """

    enabled: bool = True
    """False: every retry is a plain one, as far as the budget goes."""
    forbid: tuple[Remedy, ...] = ()
    """Never taken, and taken back where one is in force."""
    learn: bool = True
    """Whether what helped on this machine is tried first, and what failed again and again is passed over."""
    same_place_steps: int = 2
    """A trouble of the same cause so few steps from the last one is at the same place."""
    helped_after_steps: int = 100
    """Steps beyond the trouble after which a remedy has helped."""
    give_up_after_failures: int = 3
    """Failures on this machine, without one success, after which a remedy is passed over."""
    lr_factor: float = 0.5
    clip_norm: float = 1.0
    batch_factor: float = 0.5
    scale_lr: bool = False
    """Whether a smaller batch lowers the learning rate by the same factor."""
    image_factor: float = 0.75
    skip_steps: int = 5
    """Batches left out on both sides of the trouble."""
    conv2d_workspace_mb: int = 256
    back_after_s: float = 300.0
    """How long a card must have answered again before a training on the CPU goes back to it."""
    max_returns: int = 3
    """Returns to a card that was lost, at most, between two words of a person."""

    non_finite: Ladder = ("skip_step", "older_generation", "lower_lr", "clip_gradients", "amp_off", "skip_data")
    oom_gpu: Ladder = ("allocator", "conv2d_workspace", "half_batch", "half_batch", "smaller_images", "cpu_profile")
    oom_host: Ladder = ("fewer_workers", "no_workers", "half_batch")
    fragmentation: Ladder = ("restart", "allocator", "conv2d_workspace", "half_batch", "half_batch", "smaller_images")
    miopen: Ladder = ("conv2d", "cudnn_off", "cpu_profile")
    slow_start: Ladder = ("restart", "conv2d", "cudnn_off", "compile_off", "no_workers", "other_gpu", "cpu_profile")
    stall: Ladder = ("restart", "no_workers", "conv2d", "other_gpu", "cpu_profile")
    stall_data: Ladder = ("restart", "no_workers")
    gpu_hang: Ladder = ("restart", "conv2d", "no_workers", "other_gpu", "cpu_profile", "reset_gpu", "reboot")
    gpu_lost: Ladder = ("other_gpu", "cpu_profile", "reset_gpu", "reboot")
    no_kernel_image: Ladder = ("conv2d", "cudnn_off", "other_gpu", "cpu_profile")
    blas: Ladder = ("restart", "amp_off", "other_gpu", "cpu_profile")
    compile: Ladder = ("compile_off",)
    loader: Ladder = ("restart", "fewer_workers", "no_workers")
    crash: Ladder = ("restart", "older_generation")
    hardware: Ladder = ("restart", "other_gpu", "cpu_profile")

    def ladder(self, cause: str) -> Ladder:
        """Return the ladder of a cause as written."""
        ladder: Ladder = getattr(self, cause)
        return ladder

    def allows(self, remedy: str) -> bool:
        """Whether it may be in force."""
        return self.enabled and remedy not in self.forbid
