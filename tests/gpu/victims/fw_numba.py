"""A numba program: a kernel, and a device array with one reference too many."""

import numpy as np

# numba-cuda 0.2x looks up this name at import; NumPy 2.5 removed it (it was an alias).
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack

from numba import cuda

from printing import digest, leak, leave, live, result


@cuda.jit
def scale(values, factor):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= factor


values = cuda.to_device(np.arange(1000, dtype=np.float32))
scale[8, 128](values, 3.0)
result("scaled", digest(values.copy_to_host()))
array = cuda.device_array(345_678, dtype=np.uint8)  # site: numba_leak
leak(array)
live("numba_leak", "device", array.__cuda_array_interface__["data"][0], 345_678)
leave()
