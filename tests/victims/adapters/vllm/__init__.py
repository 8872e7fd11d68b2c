"""A stand-in for vLLM 0.33: the part of its block pool that requests use, with the same names and the same rules."""

__version__ = "0.33.0"
