# Dask's workers, which have no rank: docs/launchers.md.

start_dask_around() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    ${culeak_run[@]+"${culeak_run[@]}"} "$venv/bin/python" -u "$here/dask_job.py" "$2" "${rank[@]:3}"
}

start_dask_nanny() { # the configuration of the nannies, which start the workers
    local variables=()
    [ "$1" = bare ] || variables=("DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON={'LD_PRELOAD': '$shim', 'CULEAK_OUTPUT': '$runs/'}")
    env ${variables[@]+"${variables[@]}"} "$venv/bin/python" -u "$here/dask_job.py" "$2" "${rank[@]:3}"
}

claims_of_dask() {
    venv dask dask.distributed dask distributed
    by_pid=--by-pid
    compare "culeak run -- a program with a LocalCluster of Dask" start_dask_around 3 1 good fails
    compare "the configuration of Dask's nannies" start_dask_nanny 3 2 good
}
