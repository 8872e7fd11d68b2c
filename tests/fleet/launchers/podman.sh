# Containers of Podman, each with a rank, and the pods of packaging/kubernetes/job.yaml: docs/launchers.md.

pod=(podman --root "$work/podman/root" --runroot "$work/podman/run" --storage-driver overlay --runtime runc)

make_image() { # a Debian with Python and culeak
    local tar=$target/fleet/image.tar
    [ -s "$tar" ] || {
        mmdebstrap --quiet --format=tar --variant=minbase --include=python3-minimal,libpython3-stdlib bookworm "$tar.part"
        mv "$tar.part" "$tar"
    }
    cp "$tar" "$work/image.tar"
    tar --append --file "$work/image.tar" --transform 's,.*,./usr/local/bin/culeak,' -P "$culeak"
    mkdir -p "$work/podman"
    # In a container the limits of a fresh machine cannot be set.
    cat >"$work/podman/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
CONF
    export CONTAINERS_CONF=$work/podman/containers.conf
    "${pod[@]}" import --quiet --change ENV=PATH=/usr/local/bin:/usr/bin:/bin "$work/image.tar" localhost/fleet:latest >/dev/null
    rm "$work/image.tar"
}

start_podman() {
    local options=() at code=0 one pids=()
    [ "$1" = bare ] || options=(-v "$shim:/libculeak.so:ro" -e LD_PRELOAD=/libculeak.so -v "$runs:/runs" -e CULEAK_OUTPUT=/runs/)
    for ((at = 0; at < $2; at++)); do
        "${pod[@]}" run --rm --hostname "train-$at" -e "RANK=$at" ${options[@]+"${options[@]}"} -v "$here:/fleet:ro" \
            -v "$(dirname "$driver"):/driver:ro" -v "$job/notes:/notes" localhost/fleet:latest \
            python3 -u /fleet/worker.py /driver/libcuda.so.1 /notes "${rank[@]:5}" &
        pids+=($!)
    done
    for at in "${pids[@]}"; do
        one=0
        wait "$at" || one=$?
        ((one <= code)) || code=$one
    done
    return $code
}

start_pods() {
    local at code=0 one
    "$venv/bin/python" "$here/pods.py" "$root/packaging/kubernetes/job.yaml" "$1" localhost/fleet:latest "$runs" "$job" "$here" \
        "$(dirname "$driver")" "${rank[@]:5}" >"$job/pods.yaml"
    "${pod[@]}" play kube --network none "$job/pods.yaml" >&2
    for ((at = 0; at < $2; at++)); do
        one=$("${pod[@]}" wait "train-$at-train")
        ((one <= code)) || code=$one
        "${pod[@]}" logs "train-$at-train"
    done
    "${pod[@]}" play kube --down "$job/pods.yaml" >&2
    return "$code"
}

claims_of_podman() {
    need podman podman
    need runc runc
    need catatonit catatonit
    need mmdebstrap mmdebstrap
    venv kubernetes kubernetes_validate kubernetes-validate
    at_end=remove_containers
    make_image
    # A container's first process cannot kill itself.
    compare "podman run" start_podman 3 2 good fails
    compare "the pods of job.yaml" start_pods 4 1 good fails
    remove_containers
    at_end=
}

remove_containers() {
    "${pod[@]}" pod rm --all --force >/dev/null 2>&1 || true
    "${pod[@]}" rm --all --force >/dev/null 2>&1 || true
    "${pod[@]}" rmi --all --force >/dev/null 2>&1 || true
    find /sys/fs/cgroup -depth -name 'libpod_parent*' -type d -exec rmdir {} + 2>/dev/null || true
}
