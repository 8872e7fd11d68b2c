"""Makes two interpreters besides the main one, and waits."""

import os, sys

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

made = [interpreters.create() for _ in range(2)]
for one in made:
    interpreters.run_string(one, "kept = [object()]")
print("ready", flush=True)
sys.stdin.readline()
os._exit(0)
