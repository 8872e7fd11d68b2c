#!/usr/bin/env bash
# The live view and the pager in a real terminal (tmux), completions in a real shell, manual pages in a real reader.
#
# Usage: tests/live/run.sh CULEAK        the program under test; a debug build, for the test of a panic
#
# A program on the fake driver allocates on command; the script types keys and reads screens. No step waits for a fixed
# time: each waits until the screen shows the expected text, and fails with the screen after 20 seconds.
set -euo pipefail

culeak=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
server=culeak-live-$$
passed=0

stop() {
    tmux -L "$server" kill-server 2>/dev/null || true
    # Only processes that this script started.
    for pid in $(cat "$work"/pids 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap stop EXIT

need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    export DEBIAN_FRONTEND=noninteractive
    [ -n "${UPDATED:-}" ] || { apt-get update -q >/dev/null; UPDATED=1; }
    apt-get install -qy --no-install-recommends "$2" >/dev/null
}
need tmux tmux
need cc gcc
need man man-db
need less less
need mandoc mandoc
need zsh zsh
need fish fish
need python3 python3

screen() { tmux -L "$server" capture-pane -p; }
keys() { tmux -L "$server" send-keys "$@"; }
line() { tmux -L "$server" send-keys -l "$1"; tmux -L "$server" send-keys Enter; }
send() { echo "$1" > "$work/fifo"; }
ok() { passed=$((passed + 1)); echo "ok      $1"; }

fail() {
    echo "failed  $1"
    screen | sed 's/^/        | /'
    exit 1
}

seen() { # seen CLAIM PATTERN...: waits until the screen shows all patterns; a leading ! negates one
    local claim=$1 pattern found
    shift
    for _ in $(seq 200); do
        found=yes
        for pattern in "$@"; do
            if [ "${pattern:0:1}" = "!" ]; then
                screen | grep -qE -- "${pattern:1}" && found=
            else
                screen | grep -qE -- "$pattern" || found=
            fi
        done
        [ -n "$found" ] && { ok "$claim"; return; }
        sleep 0.1
    done
    fail "$claim: the screen should show $*"
}

sane() { # sane CLAIM: the shell has the terminal back, with echo and line editing, and the cursor and the main screen
    line 'stty -a | tr -s " ;" "\n" | grep -xE -- "-?(icanon|echo|isig|icrnl|opost)" | sort | tr "\n" " "; echo "<stty>"'
    seen "$1" '^echo icanon icrnl isig opost <stty>'
    [ "$(tmux -L "$server" display -p '#{alternate_on} #{cursor_flag}')" = "0 1" ] || fail "$1: screen or cursor"
    line clear
}

fake=$("$culeak" shim-path --fake-driver)
cc -g -O1 -D_GNU_SOURCE -DLOOKUP_LINKED -pthread -o "$work/victim" "$here/victim.c" "$fake/libcuda.so.1" -Wl,-rpath,"$fake" -ldl
mkdir "$work/nvml"
cc -shared -fPIC -o "$work/nvml/libnvidia-ml.so.1" "$here/../victims/nvml.c"
mkfifo "$work/fifo"

tmux -L "$server" -f /dev/null new-session -d -x 80 -y 24 -c "$work" "env -u NO_COLOR PS1='$ ' bash --norc --noprofile"

# --- a program that the view starts ---
line "$culeak live -- ./victim fifo; echo \"code <\$?>\""
seen "a view without live memory" 'culeak: [0-9]+ ./victim fifo' 'nothing held' 'not recorded: nothing lost'
send "batch 10"; send "staging"
seen "an allocation appears with its line" '20 MiB +10 .*load_batch +victim.c:[0-9]+' '32 MiB +1 .*staging_buffer' 'holds 52 MiB in 11 blocks at 2 call sites'
keys m; seen "the mark is set" 'growth since the mark'; send "batch 5"
seen "growth counts from the mark" 'growth since the mark' '30 MiB +15 +\+10 MiB'
keys d
seen "the diff shows only what changed" 'changes since the mark' 'grown +30 MiB' '!staging_buffer'
keys d; keys /; tmux -L "$server" send-keys -l pinned; keys Enter
seen "the filter finds kinds" 'filter "pinned": 1 of 2' 'staging_buffer' '!load_batch +victim'
keys Escape
seen "and esc clears it" 'load_batch +victim' '!filter "'
keys c
seen "sorting by count" 'by count'
keys Enter
seen "a site opens to its stacks" '15 blocks, device' '    load_batch +.*victim.c:[0-9]+' '    main '
keys Enter; keys ' '
seen "a paused view is marked" 'PAUSED'
send "batch 1"; send "free 2"
keys '?'
seen "help" 'Ctrl-C +quit'
screen | grep -qE '14 blocks' && fail "paused: the numbers changed"
keys '?'; keys ' '
seen "and resumes with the newest" '28 MiB +14' '!PAUSED'
keys l
seen "the ledger of the process" '28 MiB +allocated by the program itself, in 14 blocks'
send "batch 1"
seen "which follows it" '30 MiB +allocated by the program itself, in 15 blocks'
send "free 1"
seen "both ways" '28 MiB +allocated by the program itself, in 14 blocks'
keys l
seen "and is left by the same key" 'load_batch +victim' '!by the program itself'
send "fork"; send "child batch 3"
seen "a child appears by itself" 'process 1 of 2' 'tab process'
keys Tab
seen "and is reached by tab" 'process 2 of 2' '6 MiB +3 .*load_batch'
keys Tab
seen "and left by it" 'process 1 of 2' '28 MiB +14'
tmux -L "$server" resize-window -x 60 -y 12
seen "a small terminal" 'load_batch' 'q quit'
tmux -L "$server" resize-window -x 30 -y 8
seen "a terminal that is too small" 'needs 40 columns'
tmux -L "$server" resize-window -x 132 -y 43
seen "a large one" 'load_batch +victim.c:[0-9]+  device'
tmux -L "$server" resize-window -x 80 -y 24
keys C-z
seen "suspended, the shell is there" 'Stopped'
sane "suspended, the terminal is the shell's"
line 'fg; echo "code <$?>"'
seen "continued, the view is there" 'holds 60 MiB'
send "exit 3"
seen "the end is shown, and the view stays" 'exited after' 'leaked 60 MiB' 'exited with code 3'
pid=$(screen | sed -n 's/^culeak: \([0-9]*\) .*/\1/p')
shown=$(screen | grep -oE 'leaked .* call sites')
reported=$("$culeak" report "$work"/victim.*."$pid".culeak --json | python3 -c '
import json, sys
totals = json.load(sys.stdin)["totals"]
held = [totals["held"][place] for place in ("device", "managed", "host")]
size, count = (sum(tally[name] for tally in held) for name in ("bytes", "count"))
sites = totals["call_sites"]
print(f"leaked {size >> 20} MiB in {count} blocks at {sites} call sites")')
[ "$shown" = "$reported" ] || fail "the numbers are those of the report: $reported"
ok "and its numbers are those of the report"
keys q
seen "the exit code is the program's" 'code <3>' 'its output is in' 'next: culeak report'
grep -q 'did batch' "$work"/victim.*.output || fail "the output is in the file"
ok "the output is in the file"
sane "after q, the terminal is the shell's"
rm -f "$work"/*.culeak

# --- a running process, a recording that appears later, a folder ---
start_victim() {
    (cd "$work" && LD_PRELOAD=$("$culeak" shim-path) CULEAK_QUIET=1 exec ./victim fifo > victim.out) &
    victim=$!
    disown
    echo "$victim" >> "$work/pids"
}
line "LD_LIBRARY_PATH=nvml NVML_USED=$((40 << 30)) $culeak live later; echo \"code <\$?>\""
seen "the view waits for a recording" 'waiting for later'
mkdir "$work/later"
seen "and a folder" 'waiting for recordings'
start_victim
send "batch 2"
for _ in $(seq 100); do ls "$work"/victim.*.culeak >/dev/null 2>&1 && break; sleep 0.1; done
ln "$work"/victim.*.culeak "$work/later/"
seen "until it appears" '4 MiB +2 .*load_batch'
seen "the driver's usage of the device" 'GPU 0 +4 MiB now +4 MiB peak +50 % full'
keys C-c
seen "Ctrl-C quits" 'code <0>'
sane "after Ctrl-C, the terminal is the shell's"

view_pid() { pgrep -n -f "$culeak live $victim" || true; }
for signal in TERM HUP; do
    line "$culeak live $victim; echo \"code <\$?>\""
    seen "a process by its number ($signal)" '4 MiB +2 .*load_batch'
    kill -$signal "$(view_pid)"
    seen "SIG$signal ends the view as a signal does" "code <$((128 + $(kill -l $signal)))>"
    sane "after SIG$signal, the terminal is the shell's"
done
line "$culeak live $victim; echo \"code <\$?>\""
seen "a process once more" '4 MiB +2 .*load_batch'
kill -9 "$victim"
seen "a killed process has ended, and the view stays" 'ended without exit handlers' 'leaked 4 MiB'
keys q
seen "until q" 'code <0>'
line clear

line "RUST_BACKTRACE=0 CULEAK_TEST_PANIC=1 $culeak live .; echo \"code <\$?>\""
seen "a panic's message can be read" 'requested by CULEAK_TEST_PANIC' 'code <101>'
sane "after a panic, the terminal is the shell's"
line "$culeak live | cat; echo \"code <\${PIPESTATUS[0]}>\""
seen "without a terminal: usage" 'code <2>'
line "clear; $culeak live . < /dev/null; echo \"code <\$?>\""
seen "without a terminal for input: an error" 'standard input is not a terminal' 'code <2>'
line "clear; $culeak live $victim; echo \"code <\$?>\""
seen "no such process: an error" 'no such process' 'code <2>'

# --- the pager ---
line "clear; env -u PAGER -u CULEAK_PAGER -u LESS $culeak help ci; echo \"code <\$?>\""
seen "text that is longer than the terminal is shown in less" 'How do I fail a build' '^:' '!code <'
keys C-c
# less drops keys that it reads while it handles Ctrl-C, so this one is pressed until it is answered.
for _ in $(seq 200); do
    keys G
    screen | grep -q '^(END)' && break
    sleep 0.1
done
seen "where Ctrl-C does not end culeak" '^\(END\)' '!code <'
keys q
seen "and q leaves" 'code <0>'
sane "after the pager, the terminal is the shell's"
line "clear; $culeak help exit-codes --no-pager; echo \"code <\$?>\""
seen "no pager if it is not wanted" 'code <0>'

# --- completions, in the shells themselves ---
"$culeak" setup completions bash > "$work/culeak.bash"
answers=$(bash --norc -c "source '$work/culeak.bash'
    COMP_WORDS=(culeak re) COMP_CWORD=1; _culeak culeak re culeak; echo \"\${COMPREPLY[@]}\"
    COMP_WORDS=(culeak live --ev) COMP_CWORD=2; _culeak culeak --ev live; echo \"\${COMPREPLY[@]}\"
    COMP_WORDS=(culeak help qui) COMP_CWORD=2; _culeak culeak qui help; echo \"\${COMPREPLY[@]}\"")
[ "$answers" = $'report\n--every\nquickstart' ] || fail "bash completes: $answers"
ok "bash completes commands, options and guides"
mkdir "$work/zfunc"; "$culeak" setup completions zsh > "$work/zfunc/_culeak"
zsh -f -c "fpath=('$work/zfunc' \$fpath); autoload -U compinit; compinit -D -u; whence -w _culeak; (( \$+_comps[culeak] ))" \
    | grep -q function || fail "zsh loads the completions"
ok "zsh loads them"
"$culeak" setup completions fish > "$work/culeak.fish"
fish --no-config -c "source '$work/culeak.fish'; complete -C 'culeak sn'" | grep -q '^snapshot' || fail "fish completes commands"
fish --no-config -c "source '$work/culeak.fish'; complete -C 'culeak help qui'" | grep -qx 'quickstart' || fail "fish completes guides"
ok "fish completes commands and guides"

# --- manual pages ---
"$culeak" setup man --out "$work/man" > /dev/null
mandoc -T lint -W error "$work"/man/*.1 || fail "mandoc reads the pages"
LC_ALL=C MANWIDTH=80 man -l "$work/man/culeak-live.1" | grep -qE 'culeak live -o runs -- python train.py' || fail "man shows an example"
ok "manual pages are read by man and mandoc"

echo "$passed passed"
