#!/usr/bin/env bash
# The live view with a million live allocations, on one core: how often it draws, and how much CPU time that takes.
#
# Usage: benches/live.sh CULEAK        a release build; needs tmux, a C compiler and two cores (the program has the other)
set -euo pipefail

culeak=$(realpath "$1")
repository=$(dirname "$(dirname "$(realpath "$0")")")
work=$(mktemp -d)
server=culeak-bench-$$
blocks=${BLOCKS:-1000000}
seconds=${SECONDS_EACH:-20}

stop() {
    tmux -L "$server" kill-server 2>/dev/null || true
    [ -z "${victim:-}" ] || kill -9 "$victim" 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT

fake=$("$culeak" shim-path --fake-driver)
cc -g -O1 -D_GNU_SOURCE -DLOOKUP_LINKED -pthread -o "$work/victim" "$repository/tests/live/victim.c" "$fake/libcuda.so.1" \
    -Wl,-rpath,"$fake" -ldl
mkfifo "$work/fifo"
cd "$work"
LD_PRELOAD=$("$culeak" shim-path) CULEAK_QUIET=1 taskset -c 1 ./victim fifo > victim.out &
victim=$!
echo "small $blocks" > fifo
until grep -q 'did small' victim.out; do sleep 0.2; done

tmux -L "$server" -f /dev/null new-session -d -x 120 -y 40 "exec taskset -c 0 $culeak live $victim"
tmux -L "$server" pipe-pane -o "cat > $work/drawn"
view=$(tmux -L "$server" display -p '#{pane_pid}')

until tmux -L "$server" capture-pane -p | grep -q "holds .* blocks at"; do sleep 0.2; done

ticks() { sed 's/.*) //' "/proc/$view/stat" | awk '{ print $12 + $13 }'; }
# Every frame hides the cursor.
frames() { grep -ao $'\x1b\[?25l' "$work/drawn" | wc -l; }
measure() {
    local frames_before ticks_before
    frames_before=$(frames) ticks_before=$(ticks)
    sleep "$seconds"
    awk -v what="$1" -v frames=$(($(frames) - frames_before)) -v ticks=$(($(ticks) - ticks_before)) \
        -v hertz="$(getconf CLK_TCK)" -v seconds="$seconds" \
        'BEGIN { printf "%s: %.1f frames a second, %.0f %% of a core, %.0f ms of CPU a frame\n",
                 what, frames / seconds, 100 * ticks / hertz / seconds, 1000 * ticks / hertz / frames }'
}
measure "quiet"
echo busy > fifo
measure "busy"
tmux -L "$server" capture-pane -p | head -8
