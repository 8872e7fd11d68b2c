# A launcher with torchrun's variables and behaviour (launch.py); launchers/torchrun.sh runs the real one.

start_torchlike() { # culeak around the launcher: docs/launchers.md
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    ${by:-} ${culeak_run[@]+"${culeak_run[@]}"} python3 "$here/launch.py" "$2" "${rank[@]}"
}

start_torchlike_by_variables() { # the environment alone, as in a container or a unit file
    local variables=()
    [ "$1" = bare ] || variables=("LD_PRELOAD=$shim" "CULEAK_OUTPUT=$runs/")
    ${by:-} env ${variables[@]+"${variables[@]}"} python3 "$here/launch.py" "$2" "${rank[@]}"
}

claims_of_torchlike() {
    compare "a launcher like torchrun, 64 ranks" start_torchlike 64 41 good
    compare "a launcher like torchrun" start_torchlike 4 2 fails killed
    compare "a launcher like torchrun, by variables" start_torchlike_by_variables 4 2 good killed
    doctor_says "the library arrives in all 3, on 1 host" 0 python3 "$here/launch.py" 3
    signalled "a launcher like torchrun" start_torchlike 3 TERM
    signalled "a launcher like torchrun" start_torchlike 3 INT
}
