"""See the package above."""
from . import memory_resource

__all__ = ["memory_resource"]
