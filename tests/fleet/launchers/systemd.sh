# The drop-in for units: docs/launchers.md.

claims_of_systemd() {
    need systemd-analyze systemd
    local units=$work/units said
    mkdir -p "$units/server.service.d"
    printf '[Service]\nExecStart=/bin/true\n' >"$units/server.service"
    cp "$root/packaging/systemd/culeak.conf" "$units/server.service.d/"
    said=$(SYSTEMD_UNIT_PATH=$units: systemd-analyze verify server.service 2>&1) && [ -z "$said" ] || fail "culeak.conf: $said"
    ok "culeak.conf is valid"
    sed -i 's/^Environment=/Enviroment=/' "$units/server.service.d/culeak.conf"
    said=$(SYSTEMD_UNIT_PATH=$units: systemd-analyze verify server.service 2>&1) || true
    grep -q "Unknown key" <<<"$said" || fail "systemd takes anything"
    ok "a misspelled key is noticed"
    [ -d /run/systemd/system ] || not_run+=("systemd: a service with the drop-in; systemd does not run here")
}
