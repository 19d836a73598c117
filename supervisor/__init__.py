"""rocm-supervisor keeps a training alive on hardware that fails; this package holds nothing but its version."""

__version__ = "0.1.0"
