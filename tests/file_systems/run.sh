#!/usr/bin/env bash
# Recordings on real file systems: ones that keep what fallocate reserved, ones that do not, and full ones.
#
# Usage: tests/file_systems/run.sh CULEAK        as root, on a machine with loop devices and /dev/fuse
#
# On each file system a program allocates on command. It must end well, whatever happens to its recording, and what is not
# recorded must be counted and reported. Installs the tools that make the file systems as Debian packages.
set -euo pipefail

culeak=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d /tmp/culeak-fs.XXXXXX)
passed=0

need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    export DEBIAN_FRONTEND=noninteractive
    [ -n "${UPDATED:-}" ] || { apt-get update -q >/dev/null; UPDATED=1; }
    apt-get install -qy --no-install-recommends "$2" >/dev/null
}
need cc gcc
need python3 python3
need mkfs.ext4 e2fsprogs
need mkfs.xfs xfsprogs
need mkfs.btrfs btrfs-progs
need fusermount3 fuse3
/sbin/ldconfig -p | grep -F libfuse.so.2 >/dev/null || need /no/such/command libfuse2
python3 -m venv "$work/python"
"$work/python/bin/pip" install --quiet 'fusepy==3.0.1'

running=''
clean() {
    # After a failure the program still waits for a command, and keeps its file system mounted.
    [ -z "$running" ] || { pkill -KILL -P "$running"; kill "$running"; } 2>/dev/null || true
    exec 3>&- || true
    for folder in "$work"/mount/*; do umount -l "$folder" 2>/dev/null || true; done
    rm -rf "$work"
}
trap clean EXIT

ok() { passed=$((passed + 1)); echo "ok      $1"; }
fail() {
    echo "failed  $1"
    sed 's/^/        | /' "$work/stderr"
    exit 1
}

fake=$("$culeak" shim-path --fake-driver)
cc -g -O1 -D_GNU_SOURCE -DLOOKUP_LINKED -pthread -o "$work/victim" "$here/../live/victim.c" "$fake/libcuda.so.1" -Wl,-rpath,"$fake" -ldl
mkdir "$work/mount" "$work/spool"
export CULEAK_CACHE_DIR='' CULEAK_SPOOL=$work/spool

image() { # image NAME SIZE MKFS...: a file system in a file, mounted on $work/mount/NAME
    local name=$1
    truncate -s "$2" "$work/$name.image"
    "${@:3}" "$work/$name.image" >/dev/null 2>&1
    mkdir "$work/mount/$name"
    mount -o loop "$work/$name.image" "$work/mount/$name"
}

start() { # start FOLDER: a program that obeys commands, recorded into it
    rm -f "$work/commands"
    mkfifo "$work/commands"
    "$culeak" check -o "$1" -- "$work/victim" "$work/commands" >"$work/stdout" 2>"$work/stderr" &
    running=$!
    exec 3<>"$work/commands"
}
send() { # send COMMAND: waits until it is done
    echo "$1" >&3
    for _ in $(seq 600); do
        grep -qx "did $1" "$work/stdout" && return
        kill -0 "$running" 2>/dev/null || fail "$name: the program died at: $1"
        sleep 0.1
    done
    fail "$name: no answer to: $1"
}
finish() { # waits for the program, which must end well: 0, or 1 for the leaks
    local code=0
    echo "exit 0" >&3
    wait "$running" || code=$?
    running=''
    exec 3>&-
    [ "$code" -le 1 ] || fail "$name: exit code $code"
}
blocks() { # blocks FOLDER: how many allocations are live or lost in its recording, and how many of these are lost
    "$culeak" snapshot "$1"/*.culeak -o - | python3 -c '
import json, sys
snapshot = json.load(sys.stdin)
lost = snapshot["losses"]["lost_allocations"]
print(len(snapshot["allocations"]["rows"]) + lost, lost)'
}

# The first file systems keep what was reserved: a full one costs records, which are counted. The others are spooled.
image ext4 64M mkfs.ext4 -q
image ext3 64M mkfs.ext3 -q
image xfs 300M mkfs.xfs -q
image btrfs 200M mkfs.btrfs -q
mkdir "$work/mount/tmpfs" "$work/mount/fuse" "$work/shown"
mount -t tmpfs -o size=24m tmpfs "$work/mount/tmpfs"
overlay() { # overlay NAME BELOW: an overlayfs whose folders are on the mounted file system BELOW
    local below=$work/mount/$2
    mkdir "$work/mount/$1" "$below"/{lower,upper,work}
    mount -t overlay -o "lowerdir=$below/lower,upperdir=$below/upper,workdir=$below/work" overlay "$work/mount/$1"
}
image below-ext4 64M mkfs.ext4 -q
overlay overlay-ext4 below-ext4
image below-xfs 300M mkfs.xfs -q
overlay overlay-xfs below-xfs
mkdir "$work/mount/below-tmpfs"
mount -t tmpfs -o size=24m tmpfs "$work/mount/below-tmpfs"
overlay overlay-tmpfs below-tmpfs
image below-btrfs 200M mkfs.btrfs -q
overlay overlay-btrfs below-btrfs
"$work/python/bin/python" "$here/refusing.py" "$work/mount/fuse" "$work/shown" 2>"$work/fuse.log" &
for _ in $(seq 100); do mountpoint -q "$work/mount/fuse" && break; sleep 0.1; done
mountpoint -q "$work/mount/fuse"

for name in ext4 ext3 xfs tmpfs overlay-ext4 overlay-xfs overlay-tmpfs btrfs overlay-btrfs fuse; do
    out=$work/mount/$name/runs
    start "$out"
    send "small 1000"
    case $name in
        *btrfs | fuse) [ "$(ls "$work/spool" | wc -l)" = 1 ] || fail "$name: not spooled" ;;
        *) [ -z "$(ls "$work/spool")" ] || fail "$name: spooled" ;;
    esac
    # Space that is reserved but was never written is written when the file system is full.
    if [ $name != fuse ]; then
        dd if=/dev/zero of="$work/mount/$name/filler" bs=64k status=none 2>/dev/null || true
        dd if=/dev/zero of="$work/mount/$name/filler2" bs=512 status=none 2>/dev/null || true
        [ "$(df --output=avail -k "$work/mount/$name" | tail -1)" -lt 600 ] || fail "$name: not full"
    fi
    send "small 200000"
    finish
    read -r all lost < <(blocks "$out")
    [ "$all" = 201000 ] || fail "$name: $all of 201000 blocks are live or lost"
    case $name in
        fuse) [ "$lost" = 0 ] && [ -z "$(ls "$work/spool")" ] || fail "$name: $lost blocks lost, or still spooled" ;;
        *btrfs)
            # The copy does not fit; the recording is complete where it was written.
            [ "$lost" = 0 ] || fail "$name: $lost blocks lost"
            grep -q "could not be copied" "$work/stderr" || fail "$name: the failed copy is not reported"
            rm "$work/mount/$name/filler" "$work/mount/$name/filler2" "$work/spool/"*
            ;;
        *)
            [ "$lost" -gt 0 ] || fail "$name: was to become full"
            grep -q "cannot grow" "$work/stderr" || fail "$name: the loss is not reported"
            ;;
    esac
    umount -l "$work/mount/$name"
    ok "$name: $lost of $all blocks lost"
done
echo "$passed claims hold"
