# Kernels of Jupyter: docs/launchers.md.

start_jupyter_around() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    kernel
    ${culeak_run[@]+"${culeak_run[@]}"} "$venv/bin/python" -u "$here/jupyter_job.py" "$2" fleet "${rank[@]:3:3}"
}

start_jupyter_kernel() { # the variables in kernel.json
    case $1 in
        bare) kernel ;;
        *) kernel "\"LD_PRELOAD\": \"$shim\", \"CULEAK_OUTPUT\": \"$runs/\"" ;;
    esac
    "$venv/bin/python" -u "$here/jupyter_job.py" "$2" fleet "${rank[@]:3:3}"
}

kernel() { # kernel [VARIABLES]: writes kernel.json
    mkdir -p "$job/jupyter/kernels/fleet"
    export JUPYTER_PATH=$job/jupyter JUPYTER_PLATFORM_DIRS=0 IPYTHONDIR=$job/ipython
    cat >"$job/jupyter/kernels/fleet/kernel.json" <<JSON
{
  "argv": ["$venv/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
  "display_name": "Python with culeak",
  "language": "python",
  "env": {${1:-}}
}
JSON
}

claims_of_jupyter() {
    venv jupyter nbclient ipykernel nbclient
    compare "culeak run -- jupyter" start_jupyter_around 2 1 good
    compare "the variables in kernel.json" start_jupyter_kernel 2 1 good
}
