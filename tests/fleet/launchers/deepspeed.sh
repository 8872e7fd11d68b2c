# DeepSpeed's launcher: docs/launchers.md.
# shellcheck source=tests/fleet/torch.sh
. "$here/torch.sh"

start_deepspeed() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 ${culeak_run[@]+"${culeak_run[@]}"} "$venv/bin/python" -m deepspeed.launcher.runner --num_gpus "$2" \
        --master_port "$(free_ports 1)" "$here/torch_job.py" "${rank[@]:3}"
}

claims_of_deepspeed() {
    DS_BUILD_OPS=0 torch_venv deepspeed deepspeed deepspeed
    lines='^rank [0-9]+: '
    compare "culeak run -- deepspeed" start_deepspeed 2 1 good fails
}
