# The manifests of packaging/kubernetes are valid; launchers/podman.sh runs them. docs/launchers.md.

claims_of_kubernetes() {
    local manifests=$root/packaging/kubernetes file
    venv kubernetes kubernetes_validate kubernetes-validate
    for file in "$manifests"/{job,report,runs}.yaml; do
        "$venv/bin/kubernetes-validate" --strict --quiet "$file" || fail "$(basename "$file") is not valid"
        ok "$(basename "$file") is valid"
    done
    # The validator must reject a misspelled field.
    sed 's/initContainers:/initContainer:/' "$manifests/job.yaml" >"$work/wrong.yaml"
    cmp -s "$manifests/job.yaml" "$work/wrong.yaml" && fail "nothing is misspelled"
    "$venv/bin/kubernetes-validate" --strict --quiet "$work/wrong.yaml" >/dev/null 2>&1 && fail "the validator takes anything"
    ok "a misspelled field is rejected"
}
