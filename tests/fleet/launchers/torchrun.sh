# torchrun: docs/launchers.md.
# shellcheck source=tests/fleet/torch.sh
. "$here/torch.sh"

start_torchrun() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    OMP_NUM_THREADS=1 ${culeak_run[@]+"${culeak_run[@]}"} "$venv/bin/python" -m torch.distributed.run --standalone --nproc-per-node "$2" \
        "$here/torch_job.py" "${rank[@]:3}"
}

claims_of_torchrun() {
    torch_venv torchrun torch
    compare "culeak run -- torchrun" start_torchrun 4 2
}
