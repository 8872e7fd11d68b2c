"""The ranks of worker.py as notebooks, each in a kernel of Jupyter, one after the other.

    jupyter_job.py RANKS KERNEL DRIVER NOTES LEAKING
"""

import os
import sys

import nbformat
from nbclient import NotebookClient


def main():
    count, kernel, driver, notes, leaking = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    for rank in range(int(count)):
        os.environ["RANK"] = str(rank)
        cells = [
            f"import sys; sys.path.insert(0, {here!r}); import worker",
            f"total = worker.train(worker.Gpu({driver!r}), {rank}, {rank == int(leaking)})",
            f"worker.note({notes!r}, {rank}); print(f'rank {rank}: {{total}}')",
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        NotebookClient(notebook, kernel_name=kernel, timeout=120).execute()
        print(notebook.cells[-1].outputs[0].text, end="")


if __name__ == "__main__":
    main()
