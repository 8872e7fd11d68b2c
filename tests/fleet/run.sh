#!/usr/bin/env bash
# Jobs started the way jobs are started: real launchers start ranks on the fake driver, and one rank leaks.
#
#     tests/fleet/run.sh quick              the launchers that CI runs (2 minutes)
#     tests/fleet/run.sh all                all of them; downloads 2 GB
#     tests/fleet/run.sh slurm mpirun       some of them
#     tests/fleet/run.sh --list
#
# CULEAK names the program under test [target/debug/culeak], FLEET_TORCH a Python that has torch, which is a large download.
# Each launcher installs what it needs: Debian packages, and PyPI's in virtual environments below target/. The recipes
# are those of docs/launchers.md. Claims about each:
#
# - with culeak, the job prints the same as without, also if a rank fails or is killed, and the launcher's exit code is the same;
# - each rank has a recording, with its rank;
# - `culeak report FOLDER` names the leaking rank and its line in the first ten lines.
#
# Servers listen on free ports and keep their files in a temporary folder; they end with this script. What cannot run on this
# machine is listed as `not run` at the end.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
target=${CARGO_TARGET_DIR:-$root/target}
culeak=$(realpath "${CULEAK:-$target/debug/culeak}")
quick=(torchlike mpirun slurm kubernetes)
slow=(ray dask spark jupyter torchrun accelerate deepspeed podman systemd)
never=("docker: needs a Docker daemon; podman runs the same recipe" "apptainer: not in Debian; docs/launchers.md")

case ${1:-} in
    --list) printf '%s\n' "${quick[@]}" "${slow[@]}"; exit ;;
    quick) chosen=("${quick[@]}") ;;
    all) chosen=("${quick[@]}" "${slow[@]}") ;;
    "" | -*) sed -n '2,9p' "$0" >&2; exit 2 ;;
    *) chosen=("$@") ;;
esac
for launcher in "${chosen[@]}"; do
    [ -f "$here/launchers/$launcher.sh" ] || { echo "run.sh: $launcher: unknown; --list prints all" >&2; exit 2; }
done

work=$(mktemp -d)
# Other users' servers pass through it.
chmod 711 "$work"
passed=0
not_run=()
servers=()

# Ends the servers of this script, the last one first, and waits for each.
stop_servers() {
    local at pid
    for ((at = ${#servers[@]} - 1; at >= 0; at--)); do
        pid=${servers[at]}
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
        kill -9 "$pid" 2>/dev/null || true
    done
    servers=()
}
leave() {
    stop_servers
    [ -z "${at_end:-}" ] || "$at_end"
    [ -z "${made_policy:-}" ] || rm -f /usr/sbin/policy-rc.d
    rm -rf --one-file-system "$work"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ok() { passed=$((passed + 1)); printf 'ok      %s\n' "$*"; }
fail() {
    printf 'FAILED  %s\n' "$*" >&2
    exit 1
}

need() { # need COMMAND PACKAGE…: installs Debian packages if a command is missing, without starting their services
    command -v "$1" >/dev/null && return
    shift
    export DEBIAN_FRONTEND=noninteractive
    if ! [ -e /usr/sbin/policy-rc.d ]; then
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod +x /usr/sbin/policy-rc.d
        made_policy=1
    fi
    [ -n "${updated:-}" ] || { apt-get update -q >/dev/null; updated=1; }
    apt-get install -qy --no-install-recommends "$@" >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; fail "apt-get install $*"; }
}

venv() { # venv NAME MODULE PACKAGE…: $venv is a virtual environment in which MODULE can be imported
    venv=$target/fleet/$1
    "$venv/bin/python" -c "import $2" 2>/dev/null && return
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${@:3}"
}

free_ports() { # free_ports COUNT: prints as many ports on which nothing listens
    python3 -c 'import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets: one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))' "$1"
}

wait_for() { # wait_for WHAT COMMAND…: until the command succeeds, for 60 seconds
    local what=$1
    shift
    for _ in $(seq 600); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
    fail "$what did not happen within 60 seconds"
}

# --- a job, with and without culeak ---

# Sets up the folders of a job. $runs: its recordings; $rank: the command of each rank, of which number $2 leaks, with ending $3.
new_job() { # new_job NAME LEAKING ENDING
    job=$work/$1
    runs=$job/runs
    rm -rf "$job"
    mkdir -p "$job/notes" "$runs"
    rank=(python3 -u "$here/worker.py" "$driver" "$job/notes" "$2" "$3")
}

# Runs START with `bare` and `with`, for each ending. START prints what the job prints and returns the launcher's exit code.
compare() { # compare CLAIM START RANKS LEAKING [ENDING…]: without endings, all
    local claim=$1 start=$2 ranks=$3 leaking=$4 ending bare with
    shift 4
    [ $# -gt 0 ] || set -- good fails killed
    for ending in "$@"; do
        bare=0 with=0
        new_job bare "$leaking" "$ending"
        "$start" bare "$ranks" >"$job/stdout" 2>"$job/stderr" || bare=$?
        mv "$job" "$work/bare.ended"
        new_job with "$leaking" "$ending"
        "$start" with "$ranks" >"$job/stdout" 2>"$job/stderr" || with=$?
        [ "$bare" = "$with" ] || { cat "$job/stderr" >&2; fail "$claim, $ending: exit code $with, without culeak $bare"; }
        if [ "$ending" = good ]; then
            [ "$bare" = 0 ] || { cat "$job/stderr" >&2; fail "$claim: exit code $bare"; }
            same_output "$claim"
            python3 -B "$here/check.py" "$culeak" "$runs" "$job/notes" "$ranks" "$leaking" ${by_pid:-} ||
                { cat "$job/stderr" >&2; fail "$claim: recordings"; }
        else
            [ "$bare" != 0 ] || fail "$claim, $ending: the launcher's exit code is 0"
        fi
        rm -rf "$work/bare.ended"
        ok "$claim: $ending, exit code $with"
    done
}

same_output() {
    # Some launchers print the time.
    grep -E "${lines:-}" "$work/bare.ended/stdout" | sort >"$work/expected"
    [ "$(grep -c '^rank [0-9]*: [0-9]*$' "$work/expected")" -gt 0 ] || { cat "$work/bare.ended/stderr" >&2; fail "$1: no rank prints a sum"; }
    grep -E "${lines:-}" "$job/stdout" | sort | diff "$work/expected" - || { cat "$job/stderr" >&2; fail "$1: the output differs"; }
}

# Sends SIGNAL to the launcher of a job whose ranks wait; its exit code is the same with and without culeak.
signalled() { # signalled CLAIM START RANKS SIGNAL
    local claim=$1 start=$2 ranks=$3 signal=$4 how pid code codes=()
    for how in bare with; do
        new_job "$how" 0 waits
        by=exec "$start" "$how" "$ranks" >"$job/stdout" 2>"$job/stderr" &
        pid=$!
        servers+=("$pid")
        wait_for "$claim: $ranks ranks are waiting" all_wait "$ranks"
        kill -"$signal" "$pid"
        code=0
        wait "$pid" || code=$?
        codes+=("$code")
        for note in "$job"/notes/*; do
            pid=${note##*/}
            wait_for "$claim: the end of rank $(cat "$note")" is_gone "${pid%%.*}"
        done
    done
    [ "${codes[0]}" = "${codes[1]}" ] || { cat "$job/stderr" >&2; fail "$claim, SIG$signal: exit code ${codes[1]}, without culeak ${codes[0]}"; }
    [ "$(find "$runs" -name '*.culeak' | wc -l)" = "$ranks" ] || fail "$claim, SIG$signal: not every rank has a recording"
    ok "$claim: SIG$signal, exit code ${codes[1]}"
}
all_wait() { [ "$(find "$job/notes" -type f ! -name '*.part' | wc -l)" = "$1" ]; }
is_gone() { ! kill -0 "$1" 2>/dev/null; }

# `culeak doctor --job` with this launcher prints TEXT and exits with CODE.
doctor_says() { # doctor_says TEXT CODE LAUNCHER…
    local code=0
    new_job doctor 0 good
    "$culeak" doctor --job "$runs" -- "${@:3}" >"$job/doctor" 2>&1 || code=$?
    [ "$code" = "$2" ] && grep -qF -- "$1" "$job/doctor" || { cat "$job/doctor" >&2; fail "doctor --job -- ${*:3}: exit code $code"; }
    ok "doctor --job: $1"
}

# shellcheck disable=SC2034 # used by the launchers
shim=$("$culeak" shim-path)
driver=$("$culeak" shim-path --fake-driver)/libcuda.so.1
export PYTHONDONTWRITEBYTECODE=1 CULEAK_CACHE_DIR=$work/cache
unset LD_PRELOAD RANK LOCAL_RANK WORLD_SIZE

for launcher in "${chosen[@]}"; do
    printf '\n-- %s\n' "$launcher"
    by_pid='' lines=''
    # shellcheck source=/dev/null
    . "$here/launchers/$launcher.sh"
    "claims_of_$launcher"
    stop_servers
done

echo
[ "${1:-}" != all ] || not_run+=("${never[@]}")
for reason in ${not_run[@]+"${not_run[@]}"}; do echo "not run  $reason"; done
echo "$passed passed, ${#not_run[@]} not run"
