#!/usr/bin/env bash
# Makes the images of the documentation from a real run on the fake driver: the HTML report in Chromium, light and dark, and
# the live view in tmux. Needs a C++ compiler, python3 with venv, tmux and Chromium.
#
#     docs/images/make.sh [PATH_OF_CULEAK]
set -euo pipefail
here=$(dirname "$(realpath "$0")")
target=${CARGO_TARGET_DIR:-$here/../../target}
culeak=$(realpath "${1:-$target/debug/culeak}")
tools=$target/images-tools
for command in g++ tmux chromium python3; do
    command -v "$command" >/dev/null || { echo "make.sh: $command is not installed" >&2; exit 1; }
done
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/python" -c 'import playwright, PIL' 2>/dev/null ||
    "$tools/bin/pip" install --quiet --disable-pip-version-check playwright pillow

work=$(mktemp -d)
server=culeak-images-$$
trap 'tmux -L "$server" kill-server 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"

"$here/record.sh" "$culeak" "$work"
for scheme in light dark; do
    "$tools/bin/python" "$here/page.py" "$(command -v chromium)" report.html "$here/report-$scheme.png" "$scheme"
    "$tools/bin/python" "$here/page.py" "$(command -v chromium)" timeline.html "$here/timeline-$scheme.png" "$scheme" "Memory over time"
done

# The live view: a mark after a few steps, then the screen after a few more.
screen() { tmux -L "$server" capture-pane -p; }
shows() { # shows PATTERN: waits until the screen has it
    for _ in $(seq 200); do
        if screen | grep -qE -- "$1"; then return; fi
        sleep 0.1
    done
    screen >&2
    echo "make.sh: the live view does not show $1" >&2
    exit 1
}
tmux -L "$server" -f /dev/null new-session -d -x 100 -y 14 -c "$work" "env -u NO_COLOR PATH='$(dirname "$culeak"):$PATH' PS1='$ ' bash --norc"
tmux -L "$server" send-keys -l 'culeak live -- ./train 200 250'
tmux -L "$server" send-keys Enter
shows ' 1[0-9] .*load_batch'
tmux -L "$server" send-keys m
shows ' [34][0-9] .*load_batch'
tmux -L "$server" capture-pane -e -p | python3 "$here/screen.py" "culeak live" >"$here/live.svg"
tmux -L "$server" send-keys q

# The tour of the README.
python3 "$here/tour.py" "$culeak"
ls -l "$here"/*.png "$here"/*.svg
