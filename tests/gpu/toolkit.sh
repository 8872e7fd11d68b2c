# Finds the CUDA toolkit and a libcuda to link with. Sourced by the scripts beside it; sets nvcc, cuda, libraries, driver.
#   NVCC   the compiler; default: the one on the PATH, else /usr/local/cuda/bin/nvcc
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if ! "$nvcc" --version >/dev/null 2>&1; then
    echo "$nvcc: cannot run it; put nvcc on the PATH or set NVCC to its path" >&2
    exit 2
fi
# The toolkit's folder as nvcc itself knows it: nvcc may be a link or a wrapper.
cuda=$("$nvcc" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
cuda=${cuda:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}
libraries=()
for folder in "$cuda/lib64" "$cuda/targets/$(uname -m)-linux/lib" "$cuda/lib"; do
    [ -d "$folder" ] && libraries+=("-L$folder" "-Xlinker" "-rpath,$(cd "$folder" && pwd)")
done
# libcuda to link with: the toolkit's stub, or else the driver itself.
driver=""
for file in "$cuda"/lib64/stubs/libcuda.so "$cuda"/targets/"$(uname -m)"-linux/lib/stubs/libcuda.so "$cuda"/lib/stubs/libcuda.so \
    $(ldconfig -p 2>/dev/null | sed -n 's/.*=> \(.*libcuda\.so\.1\)$/\1/p') /usr/local/nvidia/lib*/libcuda.so.1 /usr/lib/*/libcuda.so.1; do
    [ -e "$file" ] && driver=$file && break
done
