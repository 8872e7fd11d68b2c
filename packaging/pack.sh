#!/usr/bin/env bash
# Makes the tarball, the deb and the rpm from a portable wheel, and checksums of all files of the folder.
#
#   packaging/pack.sh WHEEL FOLDER
#
# FOLDER contains what packaging/licences.py wrote. Called by packaging/build.sh, which explains the variables and needs.
set -euo pipefail
wheel=$(realpath "${1:?usage: pack.sh WHEEL FOLDER}")
out=$(realpath "${2:?usage: pack.sh WHEEL FOLDER}")
cd "$(dirname "$(realpath "$0")")/.."
: "${SOURCE_DATE_EPOCH:?pack.sh: set it to the time that files and packages shall have}"
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
umask 022

case $(basename "$wheel") in
    culeak-*manylinux_2_17_x86_64*.whl) machine=x86_64 debian=amd64 ;;
    culeak-*manylinux_2_17_aarch64*.whl) machine=aarch64 debian=arm64 ;;
    *) echo "pack.sh: $wheel: expected a wheel of cli/python/build.sh --portable" >&2; exit 2 ;;
esac
version=$(basename "$wheel" | cut -d- -f2)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What all packages contain, below /usr.
usr=$work/usr
mkdir -p "$usr"/{bin,include,lib/{systemd/system,sysusers.d,tmpfiles.d},share/{man/man1,doc/culeak,culeak}}
python3 -m zipfile -e "$wheel" "$work/wheel"
install -m 755 "$work"/wheel/culeak-*.data/scripts/culeak "$usr/bin/culeak"
culeak=("$usr/bin/culeak")
[ "$machine" = "$(uname -m)" ] || culeak=("qemu-$machine" -L "/usr/$machine-linux-gnu" "$usr/bin/culeak")
newest=$(readelf -VW "$usr/bin/culeak" | grep -oE 'Name: GLIBC_[0-9.]+' | sed 's/.*_//' | sort -V | tail -1)
[ "$(printf '%s\n' "$newest" 2.17 | sort -V | tail -1)" = 2.17 ] || { echo "pack.sh: the command needs glibc $newest" >&2; exit 1; }

cp shim/include/culeak.h shim/include/culeak_rmm.hpp "$usr/include"
cp packaging/culeak-watch.service "$usr/lib/systemd/system"
cp packaging/systemd/sysusers.conf "$usr/lib/sysusers.d/culeak.conf"
cp packaging/systemd/tmpfiles.conf "$usr/lib/tmpfiles.d/culeak.conf"
cp -r packaging/prometheus packaging/grafana packaging/kubernetes "$usr/share/culeak"
cp README.md "$usr/share/doc/culeak"
(cd docs && find . -name '*.md' -exec cp --parents -t "$usr/share/doc/culeak" {} +)
"${culeak[@]}" setup man --out "$usr/share/man/man1" >/dev/null
for shell in bash:bash-completion/completions zsh:zsh/site-functions fish:fish/vendor_completions.d; do
    mkdir -p "$usr/share/${shell#*:}"
    "${culeak[@]}" setup completions "${shell%%:*}" --out "$usr/share/${shell#*:}" >/dev/null 2>&1
done
chmod -R u=rwX,go=rX "$usr"

dated() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

tarball() {
    local name=culeak-$version-$machine-linux
    mkdir "$work/$name"
    cp -r "$usr/." LICENSE CHANGELOG.md "$out/THIRD-PARTY-LICENCES.txt" "$out/culeak.cdx.json" "$work/$name"
    dated "$work/$name"
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" |
        gzip -9n >"$out/$name.tar.gz"
}

deb() {
    local root=$work/deb doc=$work/deb/usr/share/doc/culeak size file
    mkdir -p "$root/DEBIAN" "$root/usr/share/lintian/overrides"
    cp -r "$usr" "$root"
    gzip -9nr "$root/usr/share/man"
    mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
    cp packaging/deb/lintian-overrides "$root/usr/share/lintian/overrides/culeak"
    cp packaging/deb/copyright "$doc/copyright"
    cp "$out/culeak.cdx.json" "$doc"
    gzip -9nc "$out/THIRD-PARTY-LICENCES.txt" >"$doc/THIRD-PARTY-LICENCES.txt.gz"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    sed "s/@version@/$version/; s/@date@/$(date --date="@$SOURCE_DATE_EPOCH" -R)/" packaging/deb/changelog |
        gzip -9n >"$doc/changelog.Debian.gz"
    size=$(du -sk --apparent-size "$root/usr" | cut -f1)
    sed "s/@version@/$version/; s/@architecture@/$debian/; s/@size@/$size/" packaging/deb/control >"$root/DEBIAN/control"
    for file in postinst prerm postrm; do install -m 755 "packaging/deb/$file" "$root/DEBIAN/$file"; done
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    chmod -R u=rwX,go=rX "$root"
    dated "$root"
    dpkg-deb --root-owner-group -Zxz -z6 --build "$root" "$out/culeak_$version-1_$debian.deb" >/dev/null
}

rpm_() {
    local root=$work/rpm
    mkdir -p "$root/usr/share/licenses/culeak"
    cp -r "$usr" "$root"
    gzip -9nr "$root/usr/share/man"
    cp LICENSE "$out/THIRD-PARTY-LICENCES.txt" "$root/usr/share/licenses/culeak"
    cp CHANGELOG.md "$out/culeak.cdx.json" "$root/usr/share/doc/culeak"
    dated "$root"
    rpmbuild -bb --quiet --target "$machine-linux" --define "_topdir $work/rpmbuild" --define "_rpmdir $work/rpms" \
        --define "culeak_version $version" --define "culeak_root $root" packaging/rpm/culeak.spec
    cp "$work"/rpms/*/culeak-*.rpm "$out"
}

tarball
deb
rpm_
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS)
