# accelerate: docs/launchers.md.
# shellcheck source=tests/fleet/torch.sh
. "$here/torch.sh"

start_accelerate() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    OMP_NUM_THREADS=1 ${culeak_run[@]+"${culeak_run[@]}"} "$venv/bin/python" -m accelerate.commands.launch --multi_gpu --num_processes "$2" \
        --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port "$(free_ports 1)" "$here/torch_job.py" "${rank[@]:3}"
}

claims_of_accelerate() {
    torch_venv accelerate accelerate accelerate
    compare "culeak run -- accelerate launch" start_accelerate 2 1 good fails
}
