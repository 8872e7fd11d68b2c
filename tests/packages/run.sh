#!/usr/bin/env bash
# Claims about the packages of packaging/build.sh: the deb and the rpm install into minimal systems, run the demo there, bring
# manual pages and completions, create the user and folder of the agent, and leave nothing behind; the tarball runs as it is;
# the checksums, the SBOM and the list of licences are complete. Needs root, mmdebstrap, rpm, lintian, man and python3.
#
#   tests/packages/run.sh FOLDER
#
# CULEAK_TREES names a folder that keeps the minimal systems, as tar files, for the next time.
#
# The rpm is installed by rpm itself into a tree of Debian's, to which a stand-in for the package glibc is added, because no
# distribution with RPM packages is at hand in every place where this runs.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
folder=$(realpath "${1:?usage: run.sh FOLDER}")
work=$(mktemp -d)
mounted=()
cleanup() {
    for path in "${mounted[@]}"; do umount --lazy "$path" || true; done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
ok() { echo "ok      $*"; }
fail() { echo "FAILED  $*"; exit 1; }

machine=$(uname -m)
deb=$(ls "$folder"/culeak_*_"$(dpkg --print-architecture)".deb)
rpm=$(ls "$folder"/culeak-*."$machine".rpm)
tarball=$(ls "$folder"/culeak-*-"$machine"-linux.tar.gz)

tree() { # tree NAME SUITE PACKAGES: a minimal system with /proc and /dev
    local root=$work/$1 kept=${CULEAK_TREES:-$work}/$2-$3.tar
    [ -e "$kept" ] || mmdebstrap --quiet --variant=minbase ${3:+--include="$3"} "$2" "$kept"
    mkdir "$root"
    tar -xpf "$kept" -C "$root" --exclude='./dev/*' --numeric-owner
    mount -t proc proc "$root/proc"
    mounted+=("$root/proc")
    mount --bind /dev "$root/dev"
    mounted=("$root/dev" "${mounted[@]}")
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod +x "$root/usr/sbin/policy-rc.d"
}
in_tree() { # in_tree NAME COMMAND…
    local root=$work/$1
    shift
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
files() { # files NAME: all paths, without databases, logs and the home of root
    (cd "$work/$1" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./root -o -path ./run -o -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/lib/rpm -o \
        -path ./usr/lib/sysimage -o -path ./var/log -o -path ./var/cache -o -path ./etc/ld.so.cache -o -path ./tmp \) -prune -o -print | sort)
}
demo() { # demo NAME: the demo, and the library that it was preloaded
    in_tree "$1" culeak demo --fake >"$work/demo" 2>&1 || { cat "$work/demo"; fail "$1: the demo"; }
    "$here/../gate.sh" "$work/$1$(in_tree "$1" culeak shim-path)" 2.17 >"$work/gate" || { cat "$work/gate"; fail "$1: the library"; }
    ok "$1: $(in_tree "$1" culeak --version) passes its demo and the gate for glibc 2.17"
}
libraries() { # libraries NAME: all that the command carries serve a recording there, and need no glibc newer than 2.17
    local root=$work/$1 fake library newest
    fake=$(in_tree "$1" culeak shim-path --fake-driver)
    in_tree "$1" LD_LIBRARY_PATH="$fake" culeak run --record audit --why --no-report -o /tmp/recorded -- culeak demo-program </dev/null >"$work/recorded" 2>&1 ||
        { cat "$work/recorded"; fail "$1: run --record audit --why"; }
    in_tree "$1" sh -c 'culeak report /tmp/recorded/*.culeak' | grep -q forget_weights || fail "$1: the recording lacks what the program allocates"
    for library in libculeak.so libculeak-hold.so libculeak-audit.so libcuda.so.1; do
        newest=$(readelf -VW "$root"/root/.cache/culeak/*/"$library" | grep -oE 'Name: GLIBC_[0-9.]+' | sed 's/.*_//' | sort -V | tail -1) || fail "$1: no $library was unpacked"
        [ "$(printf '%s\n' "$newest" 2.17 | sort -V | tail -1)" = 2.17 ] || fail "$1: $library needs glibc $newest"
    done
    ok "$1: run --record audit --why records; its libraries need no glibc newer than 2.17"
}
pages() { # pages NAME: a page for each command, which the reader formats without a warning
    local command pages=0 root=$work/$1 text
    for command in '' $(in_tree "$1" culeak help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' | sed 's/^/-/'); do
        page=$(ls "$root/usr/share/man/man1/culeak$command.1"*)
        text=$(zcat -f "$page" | MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z - 2>&1 >/dev/null)
        [ -z "$text" ] || fail "$page: $text"
        pages=$((pages + 1))
    done
    [ "$pages" -gt 10 ] || fail "$1: $pages pages"
    [ "$(ls "$root"/usr/share/man/man1/culeak*.1* | wc -l)" -eq "$pages" ] || fail "$1: there are more pages than commands"
    ok "$1: $pages manual pages"
}

(cd "$folder" && sha256sum --quiet --check SHA256SUMS && [ "$(wc -l <SHA256SUMS)" -eq "$(($(ls | wc -l) - 1))" ]) || fail "checksums"
ok "checksums of $(wc -l <"$folder/SHA256SUMS") files"
"$here/contents.py" "$folder"

# Warnings too; those that are meant are explained in packaging/deb/lintian-overrides.
lintian --fail-on error,warning "$deb" || fail "lintian"
ok "lintian"

# A system without systemd, manual pages' reader and completions.
tree bookworm bookworm ''
files bookworm >"$work/before"
cp "$deb" "$work/bookworm/tmp/culeak.deb"
in_tree bookworm dpkg --install /tmp/culeak.deb >/dev/null
demo bookworm
libraries bookworm
pages bookworm
in_tree bookworm bash -c '. /usr/share/bash-completion/completions/culeak && complete -p culeak' >/dev/null || fail "completion of bash"
in_tree bookworm dpkg --purge culeak >/dev/null
files bookworm | diff "$work/before" - || fail "bookworm: these paths differ after a purge"
ok "bookworm: a purge leaves nothing"

# A system with all of these: each finds its file by itself.
tree trixie trixie systemd,man-db,bash-completion,zsh,fish
files trixie >"$work/before"
cp "$deb" "$work/trixie/tmp/culeak.deb"
in_tree trixie apt-get install -qq -o Dpkg::Use-Pty=0 /tmp/culeak.deb >/dev/null 2>&1
demo trixie
pages trixie
in_tree trixie man culeak-run | grep -q CULEAK || fail "man culeak-run"
# shellcheck disable=SC2016 # expanded by the shell in the tree
in_tree trixie bash -c '. /usr/share/bash-completion/bash_completion; { _comp_load culeak || _completion_loader culeak; } && complete -p culeak' | grep -q culeak || fail "completion of bash"
in_tree trixie zsh -c 'autoload -U compinit && compinit -D && [[ $_comps[culeak] = _culeak ]]' || fail "completion of zsh"
in_tree trixie fish -c 'complete -C "culeak rep"' | grep -q '^report' || fail "completion of fish"
in_tree trixie fish -c 'complete -C "culeak help qui"' | grep -qx quickstart || fail "completion of guides in fish"
ok "trixie: bash, zsh and fish find their completions"
in_tree trixie id culeak >/dev/null || fail "no user culeak"
[ "$(stat -c %a "$work/trixie/var/lib/culeak/recordings")" = 1777 ] || fail "the folder of recordings"
in_tree trixie systemd-analyze verify culeak-watch.service >"$work/verify" 2>&1 || { cat "$work/verify"; fail "the unit"; }
ok "trixie: the unit, its user and its folder"
touch "$work/trixie/var/lib/culeak/recordings/a.culeak"
in_tree trixie dpkg --remove culeak >/dev/null
[ -e "$work/trixie/var/lib/culeak/recordings/a.culeak" ] || fail "the removal of the package removed a recording"
in_tree trixie dpkg --purge culeak >/dev/null
files trixie | diff "$work/before" - || fail "trixie: these paths differ after a purge"
ok "trixie: recordings outlive a removal; a purge leaves nothing"

# RPM: its database says which glibc is there.
glibc() { # glibc VERSION: a package of that name and version
    printf 'Name: glibc\nVersion: %s\nRelease: 1\nSummary: stand-in\nLicense: MIT\nBuildArch: noarch\n%%description\n.\n%%files\n' "$1" >"$work/glibc.spec"
    rpmbuild -bb --quiet --define "_topdir $work/rpmbuild" --define "_rpmdir $work/glibc-$1" "$work/glibc.spec"
    ls "$work/glibc-$1"/noarch/glibc-*.rpm
}
tree rpm bookworm ''
in_rpm() { rpm --root "$work/rpm" --define '_dbpath /var/lib/rpm' "$@"; }
in_rpm --initdb
in_rpm --install --nodeps "$(glibc 2.16)"
! in_rpm --install "$rpm" 2>"$work/refused" || fail "the rpm installs beside glibc 2.16"
grep -q 'glibc >= 2.17 is needed' "$work/refused" || { cat "$work/refused"; fail "the refusal names something else"; }
in_rpm --upgrade --nodeps "$(glibc 2.36)"
# /bin/sh belongs to a package of Debian's, which this database does not know.
in_rpm --query --requires --package "$rpm" | grep -vE '^(rpmlib\(|/bin/sh$|glibc >= 2\.17$)' && fail "the rpm requires more than it should"
files rpm >"$work/before"
in_rpm --install --nodeps "$rpm"
demo rpm
libraries rpm
pages rpm
in_rpm --verify --nodeps culeak || fail "rpm --verify"
in_rpm --erase culeak
files rpm | diff "$work/before" - || fail "rpm: these paths differ after its removal"
ok "rpm: it needs glibc 2.17, and its removal leaves nothing"

# The tarball, in the same small system.
tar -xzf "$tarball" -C "$work/bookworm/opt"
in_tree bookworm sh -c 'PATH=$(echo /opt/culeak-*/bin):$PATH; XDG_CACHE_HOME=/tmp/cache culeak demo --fake' >"$work/demo" 2>&1 || { cat "$work/demo"; fail "the tarball's demo"; }
ok "tarball: its command passes its demo"
