"""Leaves cuDNN out of the attention of a probe where torch has another kernel for it that spares the matrix as well.

cuDNN compiles kernels for attention, which takes one to two seconds of the first step and a third of a second of each
micro-batch after it. Flash attention and the memory-efficient one make the same tensors (`tests/bench/FIGURES.md`).
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from rocm_agent.fence import fenced

NEEDED = ("SDPAParams", "can_use_cudnn_attention", "can_use_flash_attention", "can_use_efficient_attention")


class Attention:
    """The calls of scaled_dot_product_attention of a training on a GPU."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
        self._may_skip = False
        self.is_skipped = False
        """Whether cuDNN was left out of a call that it would have taken."""

    def install(self) -> None:
        """Follow the calls, where torch says which kernel can take one; without a GPU none is looked at."""
        home = self._torch.backends.cuda
        if not self._torch.cuda.is_available() or not all(hasattr(home, name) for name in NEEDED):
            return
        functional = self._torch.nn.functional
        original = functional.scaled_dot_product_attention

        @wraps(original)
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            if not self._may_skip or self._is_compiling() or not fenced(self._is_to_skip)(*args, **kwargs):
                return original(*args, **kwargs)
            self.is_skipped = True
            home.enable_cudnn_sdp(enabled=False)
            try:
                return original(*args, **kwargs)
            finally:
                home.enable_cudnn_sdp(enabled=True)

        functional.scaled_dot_product_attention = scaled_dot_product_attention

    def begin(self, *, may_skip: bool) -> None:
        """Begin with a probe."""
        self._may_skip, self.is_skipped = may_skip, False

    def _is_to_skip(  # noqa: PLR0913, PLR0917 - torch's signature
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002 - as above
        scale: Any = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002 - as above
    ) -> bool:
        """Whether cuDNN can take a call, and another kernel too, as far as the program allows each."""
        home, torch = self._torch.backends.cuda, self._torch
        if query.device.type != "cuda" or getattr(torch.version, "hip", None) is not None:
            return False
        given = [query, key, value, attn_mask]
        if torch.is_autocast_enabled("cuda"):
            half = torch.get_autocast_dtype("cuda")
            given = [item.to(half) if item is not None and item.is_floating_point() else item for item in given]
        params = home.SDPAParams(*given, dropout_p, is_causal, enable_gqa)
        if not home.can_use_cudnn_attention(params):
            return False
        return bool(home.can_use_flash_attention(params) or home.can_use_efficient_attention(params))
