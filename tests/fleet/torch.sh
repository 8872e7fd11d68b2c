# Virtual environments that have torch.

torch_venv() { # torch_venv NAME MODULE [PACKAGE…]: $venv has torch, and MODULE
    local torch=${FLEET_TORCH:-} site
    if [ -z "$torch" ]; then
        venv torch torch torch numpy
        torch=$venv/bin/python
    fi
    venv=$target/fleet/$1
    "$venv/bin/python" -c "import torch, $2" 2>/dev/null && return
    "$torch" -m venv --clear "$venv"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$torch" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/torch.pth"
    # Packages that are built here, without isolation, need it.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check wheel
    [ $# -lt 3 ] || "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation "${@:3}"
}
