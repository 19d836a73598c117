"""Conv2d out of matrix products, for cards whose MIOpen does not work; it never calls a convolution kernel."""

from .algorithms import ALGORITHMS
from .operator import conv2d
from .patch import is_patched, patch, unpatch

__all__ = ["ALGORITHMS", "conv2d", "is_patched", "patch", "unpatch"]
