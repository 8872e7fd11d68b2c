# Slurm with one node and two GPUs that are none: docs/launchers.md.

start_slurm() {
    local at=$work/slurm host port_of_controller port_of_node
    host=$(hostname -s)
    read -r port_of_controller port_of_node <<<"$(free_ports 2)"
    mkdir -p "$at/state" "$at/spool" "$at/munge"
    # munged refuses a key or a log below folders that others can write.
    dd if=/dev/urandom of="$at/munge/key" bs=1024 count=1 status=none
    chmod 711 "$at" && chmod 400 "$at/munge/key" && chmod 755 "$at/munge"
    chown -R munge:munge "$at/munge"
    setpriv --reuid munge --regid munge --clear-groups munged --foreground --force --socket "$at/munge/socket" \
        --key-file "$at/munge/key" --pid-file "$at/munge/pid" --seed-file "$at/munge/seed" --log-file "$at/munge/log" \
        >"$at/munged.out" 2>&1 &
    servers+=($!)
    cat >"$at/slurm.conf" <<CONF
ClusterName=fleet
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port_of_controller
SlurmdPort=$port_of_node
AuthType=auth/munge
AuthInfo=socket=$at/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmUser=root
SlurmdUser=root
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/spool
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/slurmd.pid
SlurmctldLogFile=$at/slurmctld.log
SlurmdLogFile=$at/slurmd.log
SelectType=select/cons_tres
ReturnToService=2
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 Gres=gpu:2
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
CONF
    printf 'NodeName=%s Name=gpu File=/dev/%s\n' "$host" null "$host" zero >"$at/gres.conf"
    export SLURM_CONF=$at/slurm.conf
    wait_for "munged's socket" test -S "$at/munge/socket"
    slurmctld -D -i >"$at/slurmctld.out" 2>&1 &
    servers+=($!)
    slurmd -D >"$at/slurmd.out" 2>&1 &
    servers+=($!)
    wait_for "an idle node of Slurm" is_idle
}
is_idle() { sinfo -h -o %t | grep -qx idle; }

start_srun_inside() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    ${by:-} srun --overcommit --ntasks "$2" ${culeak_run[@]+"${culeak_run[@]}"} "${rank[@]}"
}

start_srun_export() {
    local export=ALL
    [ "$1" = bare ] || export=ALL,LD_PRELOAD=$shim,CULEAK_OUTPUT=$runs/
    ${by:-} srun --overcommit --ntasks "$2" --export="$export" "${rank[@]}"
}

start_sbatch() {
    local culeak_run=
    [ "$1" = bare ] || culeak_run="$(printf '%q ' "$culeak" run -o "$runs" --)"
    cat >"$job/job.sh" <<BATCH
#!/bin/bash
#SBATCH --ntasks=$2 --overcommit --gres=gpu:1
[ "\$CUDA_VISIBLE_DEVICES" = 0 ] || exit 99
srun --overcommit $culeak_run $(printf '%q ' "${rank[@]}")
BATCH
    local code=0
    sbatch --quiet --wait --output="$job/batch.out" --error="$job/batch.err" "$job/job.sh" || code=$?
    cat "$job/batch.out"
    cat "$job/batch.err" >&2
    return $code
}

claims_of_slurm() {
    need munged munge
    need srun slurm-client
    need slurmctld slurmctld
    need slurmd slurmd
    start_slurm
    compare "srun culeak run" start_srun_inside 4 3 good killed
    compare "srun --export" start_srun_export 4 2
    compare "sbatch with srun and a GPU" start_sbatch 2 1 good fails
    doctor_says "2 of 2 ranks can be recorded" 0 srun --overcommit --ntasks 2
    doctor_says "srun --export=NONE passes no variables" 1 srun --export=NONE --overcommit --ntasks 2
    signalled "srun --export" start_srun_export 2 TERM
}
