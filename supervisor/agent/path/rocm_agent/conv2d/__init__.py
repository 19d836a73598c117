"""Conv2d made of matrix products, for GPUs on which MIOpen does not work. No convolution kernel is called."""

from .algorithms import ALGORITHMS
from .operator import conv2d
from .patch import is_patched, patch, unpatch

__all__ = ["ALGORITHMS", "conv2d", "is_patched", "patch", "unpatch"]
