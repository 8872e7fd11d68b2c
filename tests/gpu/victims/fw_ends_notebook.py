"""Starts a Jupyter kernel, runs two cells, and shuts the kernel down. The tensors are held by globals of a module: IPython deletes the
notebook's own variables in an `atexit` callback, before the end of the script."""

import pathlib

from printing import needs

needs("torch", "ipykernel", "jupyter_client")
from jupyter_client.manager import start_new_kernel

CELLS = [
    f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import fw_ends
fw_ends.growing_list()
""",
    "fw_ends.last_act()",
]


def show(message):
    if message["msg_type"] == "stream":
        print(message["content"]["text"], end="", flush=True)
    if message["msg_type"] == "error":
        print("\n".join(message["content"]["traceback"]), flush=True)


manager, client = start_new_kernel(kernel_name="python3")
try:
    for cell in CELLS:
        client.execute_interactive(cell, timeout=60, output_hook=show)
finally:
    client.stop_channels()
    manager.shutdown_kernel()
