# OpenMPI: docs/launchers.md.

# Ranks above the number of cores, as root, on this machine alone.
mpi=(mpirun --allow-run-as-root --oversubscribe --host localhost:16 --mca btl self,vader)

start_mpirun_around() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    ${by:-} ${culeak_run[@]+"${culeak_run[@]}"} "${mpi[@]}" -n "$2" "${rank[@]}"
}

start_mpirun_inside() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    ${by:-} "${mpi[@]}" -n "$2" ${culeak_run[@]+"${culeak_run[@]}"} "${rank[@]}"
}

start_mpirun_x() {
    local variables=()
    [ "$1" = bare ] || variables=(-x "LD_PRELOAD=$shim" -x "CULEAK_OUTPUT=$runs/")
    ${by:-} "${mpi[@]}" ${variables[@]+"${variables[@]}"} -n "$2" "${rank[@]}"
}

claims_of_mpirun() {
    need mpirun openmpi-bin
    compare "culeak run -- mpirun" start_mpirun_around 4 2 good fails
    compare "mpirun culeak run" start_mpirun_inside 4 3 good killed
    compare "mpirun -x" start_mpirun_x 4 2
    doctor_says "2 of 2 ranks can be recorded" 0 "${mpi[@]}" -n 2
    signalled "mpirun -x" start_mpirun_x 3 TERM
}
