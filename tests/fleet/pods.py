"""The pods that Kubernetes would create for packaging/kubernetes/job.yaml, with worker.py as their program.

    pods.py JOB.YAML bare|with IMAGE RUNS JOB_FOLDER FLEET DRIVER LEAKING ENDING     prints YAML for `podman play kube`

What the job's controller adds is added: a name, a host name and JOB_COMPLETION_INDEX. Only the image, the command, and the
volume of the recordings differ from the manifest; the GPU is left out. `bare` removes what is marked "culeak".
"""

import copy
import sys

import yaml


def pod(job, index, arguments):
    how, image, runs, folder, fleet, driver, leaking, ending = arguments
    spec = copy.deepcopy(job["spec"]["template"]["spec"])
    (train,) = spec["containers"]
    train["image"] = image
    train["command"] = ["python3", "-u", "/fleet/worker.py", "/driver/libcuda.so.1", "/notes", leaking, ending]
    del train["resources"]
    volumes = {"fleet": fleet, "driver": driver, "notes": f"{folder}/notes"}
    if how == "bare":
        del spec["initContainers"], train["env"], train["volumeMounts"], spec["volumes"]
        train["env"], train["volumeMounts"], spec["volumes"] = [], [], []
    else:
        spec["initContainers"][0]["image"] = image
        spec["volumes"] = [volume for volume in spec["volumes"] if "persistentVolumeClaim" not in volume]
        spec["volumes"].append({"name": "runs", "hostPath": {"path": runs}})
    for name, path in volumes.items():
        spec["volumes"].append({"name": name, "hostPath": {"path": path}})
        train["volumeMounts"].append({"name": name, "mountPath": f"/{name}"})
    train["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
    name = f"{job['metadata']['name']}-{index}"
    # Podman 4 gives volumes of one name to all pods.
    for mount in [mount for container in spec.get("initContainers", []) + [train] for mount in container["volumeMounts"]]:
        mount["name"] += f"-{index}"
    for volume in spec["volumes"]:
        volume["name"] += f"-{index}"
    spec["hostname"] = name
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def main():
    with open(sys.argv[1]) as file:
        job = yaml.safe_load(file)
    pods = [pod(job, index, sys.argv[2:]) for index in range(job["spec"]["completions"])]
    yaml.safe_dump_all(pods, sys.stdout)


if __name__ == "__main__":
    main()
