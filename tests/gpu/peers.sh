#!/bin/bash
# Other projects' programs, unchanged, with and without culeak: the results must be equal.
#
#   tests/gpu/peers.sh FOLDER [--only REGEX] [--out DIR] [--limit SECONDS] [--list]
#
# FOLDER holds checkouts; those that are present are used:
#   cuda-samples   https://github.com/NVIDIA/cuda-samples, the tag of the installed toolkit (v13.0)
#   cupy           https://github.com/cupy/cupy, the tag of the installed cupy (v14.2.0)
#   pytorch        https://github.com/pytorch/pytorch, the tag of the installed torch (v2.11.0); its tests import `expecttest`
#   wheels         Python packages that this machine lacks, as wheels; installed beside the output, nowhere else
# It needs nvcc, python3 with pytest, and a GPU. CULEAK_BIN, CULEAK_SHIM and NVCC mean what they mean to run.sh.
# --limit is the time for everything together (default 540); what no longer fits is listed as not run.
# The last line is `N the same, N differ, N not run`; the exit code is 0 if nothing differs and something ran.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case " $* " in *" --list "* | *" -h "* | *" --help "*) exec python3 -B "$here/peers.py" "$@" ;; esac
source "$here/toolkit.sh"
export NVCC=$nvcc PEERS_DRIVER=$driver PEERS_LIBRARIES="${libraries[*]}"
exec python3 -B "$here/peers.py" "$@"
