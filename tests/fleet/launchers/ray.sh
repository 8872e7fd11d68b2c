# Ray, a real local cluster: docs/launchers.md.

export RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0

start_ray_whole() { # culeak around `ray start`: all workers of the node
    local culeak_run=() ports code=0 head
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    read -r -a ports <<<"$(free_ports 1)"
    ${culeak_run[@]+"${culeak_run[@]}"} "$venv/bin/python" -m ray.scripts.scripts start --head --block --port "${ports[0]}" --num-cpus 2 \
        --include-dashboard=false --temp-dir "$job/ray" --disable-usage-stats >"$job/ray.out" 2>&1 &
    head=$!
    servers+=("$head")
    RAY_ADDRESS=127.0.0.1:${ports[0]}
    export RAY_ADDRESS
    wait_for "a Ray cluster" "$venv/bin/python" -c 'import ray; ray.init(log_to_driver=False)'
    "$venv/bin/python" -u "$here/ray_job.py" "$2" inherit "${rank[@]:3}" || code=$?
    unset RAY_ADDRESS
    kill "$head"
    wait "$head" || true
    return $code
}

start_ray_runtime_env() { # culeak for some actors alone
    local variables=("FLEET_TMP=$job/ray")
    [ "$1" = bare ] || variables+=("FLEET_PRELOAD=$shim" "FLEET_OUTPUT=$runs/")
    env "${variables[@]}" "$venv/bin/python" -u "$here/ray_job.py" "$2" runtime_env "${rank[@]:3}"
}

claims_of_ray() {
    venv ray ray ray
    compare "runtime_env of Ray" start_ray_runtime_env 4 2 good killed
    compare "culeak run -- ray start" start_ray_whole 4 3 good
}
