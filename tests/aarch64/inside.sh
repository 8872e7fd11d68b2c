#!/usr/bin/env bash
# Runs a command in the emulated machine that prepare.sh made:
#
#   tests/aarch64/inside.sh FOLDER COMMAND [ARGUMENT ...]
#
# The kernel starts aarch64 programs in qemu, so a program may start others. That is registered in a user namespace of its
# own (Linux 6.7 and newer), and other processes of this machine never see it. This repository and cargo's target folder
# have the same paths inside, the current folder stays the same if it is in one of them, and cargo's and culeak's variables
# are kept, so that this can be cargo's runner. Needs root: only root can give the namespace all users.
set -euo pipefail
machine=$(realpath "${1:?usage: inside.sh FOLDER COMMAND [ARGUMENT ...]}")
shift
sources=$(realpath "$(dirname "$(realpath "$0")")/../..")
target=$(realpath -m "${CARGO_TARGET_DIR:-$sources/target}")

mapfile -t kept < <(env | grep -E '^(CARGO|CULEAK|RUST)_[A-Z_]*=' || true)

# The first bytes of an aarch64 program for Linux, the mask of those that must agree, and the flags: keep argv[0] (P), open
# the program (O) with its credentials (C), and find the emulator now, not in the new root (F).
export REGISTRATION=':culeak-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'$machine'/qemu-aarch64:POCF'

# shellcheck disable=SC2016 # expanded in the namespace
unshare --user --mount --pid --fork --kill-child --propagation private bash -euc '
    root=$1 sources=$2 target=$3 here=$4
    shift 4
    until [ "$(wc -l </proc/self/uid_map)" = 1 ] && [ "$(wc -l </proc/self/gid_map)" = 1 ]; do sleep 0.05; done
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    printf %s "$REGISTRATION" >/proc/sys/fs/binfmt_misc/register
    # Programs that make a mount namespace need a root that is a mount point.
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    for folder in "$sources" "$target"; do
        mkdir -p "$root$folder"
        mount --bind "$folder" "$root$folder"
    done
    # The tests name their folders by their process, and process numbers begin again here.
    temporary=$target/aarch64-unknown-linux-gnu/tmp
    mkdir -p "$temporary"
    mount -t tmpfs tmpfs "$root$temporary"
    [ -d "$root$here" ] || here=/tmp
    exec chroot "$root" /usr/bin/env -i --chdir="$here" PATH=/usr/local/bin:/usr/bin:/usr/sbin HOME=/root LANG=C.UTF-8 \
        QEMU_CPU=max "$@"
' bash "$machine/root" "$sources" "$target" "$PWD" "${kept[@]}" "$@" &
child=$!
# unshare ignores signals while its child runs, and all processes of the namespace end with that child.
end() {
    read -ra children 2>/dev/null <"/proc/$child/task/$child/children" || true
    kill -KILL "${children[@]}" "$child" 2>/dev/null
}
trap end INT TERM
for map in uid_map gid_map; do
    # Refused until the child has its namespace.
    until echo "0 0 4294967295" 2>/dev/null >"/proc/$child/$map"; do
        kill -0 "$child"
        sleep 0.05
    done
done
wait "$child"
