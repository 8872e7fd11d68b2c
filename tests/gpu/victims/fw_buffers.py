"""A JAX program that ends with live arrays, jitted, donated and sharded results among them, and prints them."""

import jax
import jax.numpy as jnp
import numpy as np

from printing import digest, fact, leave, live, result


def main():
    step = jax.jit(lambda a: (a * 3 + a.T) % 1_000_003)
    into = jax.jit(lambda a: a + 1, donate_argnums=0)
    kept = [jax.device_put(np.full((100, n), n, dtype=np.int32)) for n in range(1, 6)]
    x = jnp.asarray(np.arange(64 * 64, dtype=np.int32).reshape(64, 64))
    for _ in range(5):
        x = step(x)
    y = jax.device_put(np.zeros(5000, dtype=np.int32))
    for _ in range(3):
        y = into(y)
    gone = jax.device_put(np.ones(1234, dtype=np.uint8))
    gone.block_until_ready()
    gone.delete()
    jax.block_until_ready((kept, x, y))
    result("arrays", digest(np.asarray(x)), digest(np.asarray(y)), len(kept))
    arrays = [array for array in jax.live_arrays() if not array.is_deleted()]
    fact("live_arrays", len(arrays))
    for number, array in enumerate(arrays):
        live(f"array{number}", "buffer", array.unsafe_buffer_pointer(), array.nbytes)
    leave()


main()
