"""``python -m culeak`` runs the command ``culeak`` of this installation."""

import os
import sys

from culeak.command import CommandMissing, find_command


def main() -> None:
    """Replaces this process by the command; returns only if there is none."""
    try:
        command = find_command()
        os.execv(command, [command] + sys.argv[1:])
    except (CommandMissing, OSError) as error:
        sys.exit("culeak: error: {}".format(error))


if __name__ == "__main__":
    main()
