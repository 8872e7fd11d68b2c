"""A launcher like torchrun, without torch: starts ranks with torchrun's variables, and ends all when one fails.

    launch.py RANKS PROGRAM [ARGUMENT...]

Exit code: 0 if all ranks succeed, otherwise 1. SIGTERM and SIGINT are passed on to the ranks; the exit code is then 128 + the
signal's number.
"""

import os
import signal
import subprocess
import sys
import time


def environment(rank, count):
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": count,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "fleet",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return os.environ | {name: str(value) for name, value in names.items()}


def end(ranks, number):
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)
    for rank in ranks:
        try:
            rank.wait(30)
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    received = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: received.append(number))
    ranks = [subprocess.Popen(command, env=environment(rank, count)) for rank in range(count)]
    while True:
        codes = [rank.poll() for rank in ranks]
        if received:
            end(ranks, received[0])
            return 128 + received[0]
        if any(codes):
            end(ranks, signal.SIGTERM)
            return 1
        if None not in codes:
            return 0
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
