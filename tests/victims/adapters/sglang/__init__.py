"""A stand-in for SGLang 0.5.23: the allocators of its KV cache, with the same names and the same rules."""
