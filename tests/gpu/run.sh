#!/bin/bash
# The acceptance suite on a real GPU: builds the victims with nvcc, runs each under culeak, and checks what culeak recorded.
#
#   tests/gpu/run.sh [--only REGEX] [--out DIR] [--jobs N] [--allow-missing] [--list] [--compare]
#
# It needs nvcc, a C compiler, python3 and a GPU, and for the framework claims torch, jax, cupy, numba, triton, transformers,
# accelerate, peft, lightning, pytest and ipykernel with jupyter_client.
#   CULEAK_BIN    folder with `culeak` and `victim-cudarc` (tests/gpu/cudarc_victim); default: target/release
#   CULEAK_SHIM   the preload library; default: libculeak.so in that folder, else the one inside culeak
#   NVCC          the compiler; default: the one on the PATH, else /usr/local/cuda/bin/nvcc
# Optional; without them their claims are reported as missing:
#   TORCH_MEMORY_SAVER   folder of its unpacked wheel (pip download --no-deps torch_memory_saver)
#   MEMRAY               folder of its unpacked wheel, with what it needs (pip install --target FOLDER memray)
#   HAMI_CORE            folder with a libvgpu.so in it (Project-HAMi/HAMi-core, built by its build.sh)
#   the toolkit's cuBLAS, cuFFT, cuSOLVER and cuSPARSE with their headers; a second GPU
# The last line is `N passed, N failed`; the exit code is 0 if nothing failed. A claim that this machine cannot run counts as
# failed, unless --allow-missing is given. --compare measures instead (compare.md, compare-objects.md); the cost of recording is
# measured by benches/compare/run.sh.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

out="" arguments=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:?--out needs a folder}; shift 2 ;;
        --out=*) out=${1#--out=}; shift ;;
        --list | -h | --help) exec python3 -B "$here/suite.py" --out /nowhere "$1" ;;
        *) arguments+=("$1"); shift ;;
    esac
done
out=${out:-$(mktemp -d "${TMPDIR:-/tmp}/culeak-gpu.XXXXXX")}
mkdir -p "$out/bin" || exit 2
out=$(cd "$out" && pwd)
bin=$out/bin victims=$here/victims

source "$here/toolkit.sh"

# build NAME COMMAND…: runs the command with its output in NAME.log. A program that was not built fails its claims.
build() {
    local name=$1
    shift
    echo "$*" >"$bin/$name.log"
    "$@" >>"$bin/$name.log" 2>&1 || { echo "could not build $name; see $bin/$name.log" >&2; rm -f "$bin/$name"; }
}
link() { build "$1" "$nvcc" "${@:3}" "$bin/$2" "${libraries[@]}" -o "$bin/$1"; }
compile() { build "$1" "$nvcc" -O2 -g "${@:3}" -c "$victims/$2" -o "$bin/$1"; }

echo "building the victims in $bin" >&2
(
    compile rt.o rt.cu
    link rt-shared rt.o -cudart shared -Xlinker --build-id &
    link rt-rdynamic rt.o -cudart static -Xcompiler -rdynamic -Xlinker --build-id &
    link rt-static rt.o -cudart static -Xlinker --build-id
    build rt-stripped strip -o "$bin/rt-stripped" "$bin/rt-static"
    wait
) &
(compile rt-ptds.o rt.cu --default-stream per-thread; link rt-ptds rt-ptds.o -cudart shared -Xlinker --build-id) &
(compile graphs.o graphs.cu; link graphs graphs.o -cudart static) &
(compile segments.o segments.cu; build segments "$nvcc" "$bin/segments.o" "${libraries[@]}" -cudart static "$driver" -ldl -o "$bin/segments") &
(compile mixed.o mixed.cu; build mixed "$nvcc" "$bin/mixed.o" "${libraries[@]}" -cudart static "$driver" -o "$bin/mixed") &
(compile share.o share.cu; build share "$nvcc" "$bin/share.o" "${libraries[@]}" -cudart static "$driver" -o "$bin/share") &
(build drv "${CC:-cc}" -O2 -g -Wall -I"$cuda/include" "$victims/drv.c" "$driver" -o "$bin/drv") &
(build objects "${CC:-cc}" -O2 -g -Wall -I"$cuda/include" "$victims/objects.c" "$driver" -o "$bin/objects") &
(build requests "${CC:-cc}" -O2 -g -Wall -I"$cuda/include" "$victims/requests.c" "$driver" -ldl -o "$bin/requests") &
(build devices "${CC:-cc}" -O2 -g -Wall -I"$cuda/include" "$victims/devices.c" "$driver" -ldl -o "$bin/devices") &
(build handles "$nvcc" -O2 -g "$victims/handles.c" "${libraries[@]}" -cudart static -lcublas "$driver" -ldl -lpthread -o "$bin/handles") &
for library in cublas cublasLt cufft cusolver cusparse; do
    build "library-$library" "$nvcc" -O2 -g "-DUSE_$library" "$victims/libraries.c" "${libraries[@]}" -cudart shared "-l$library" "$driver" -ldl \
        -o "$bin/library-$library" &
done
(build embeds "${CC:-cc}" -O2 -g -Wall -I"$cuda/include" "$victims/embeds.c" "$driver" -ldl -o "$bin/embeds") &
(build past_driver.so "${CC:-cc}" -O2 -g -Wall -I"$cuda/include" -shared -fPIC "$victims/past.c" "$driver" -o "$bin/past_driver.so") &
(build past_runtime.so "$nvcc" -O2 -g -DRUNTIME -cudart static -shared -Xcompiler -fPIC "$victims/past.c" "${libraries[@]}" -o "$bin/past_runtime.so") &
(build past_host "${CC:-cc}" -O2 -g -Wall -D_GNU_SOURCE "$victims/past_host.c" -ldl -o "$bin/past_host") &
(build samples "${CC:-cc}" -O2 -g -Wall -I"$cuda/include" "$victims/samples.c" "$driver" -o "$bin/samples") &
(build odd_disk.so "${CC:-cc}" -O2 -Wall -D_GNU_SOURCE -shared -fPIC "$here/../victims/odd_disk.c" -o "$bin/odd_disk.so") &
(build events "${CC:-cc}" -O2 -g -Wall "$victims/events.c" -ldl -pthread -o "$bin/events") &
for plugin in one:1111 two:2222; do
    name=plugin_${plugin%:*}
    build "$name.so" "$nvcc" -O2 -g -cudart shared -shared -Xcompiler -fPIC -Xlinker --build-id \
        "-DPLUGIN_FUNCTION=$name" "-DLEAK_BYTES=${plugin#*:}" "$victims/plugin.cpp" "${libraries[@]}" -o "$bin/$name.so" &
done
# The Rust victim usually comes prebuilt; if not, and if there is a Rust toolchain, build it.
if [ ! -x "${CULEAK_BIN:-$here/../../target/release}/victim-cudarc" ] && command -v cargo >/dev/null; then
    (
        build cudarc cargo build --release --manifest-path "$here/cudarc_victim/Cargo.toml" --target-dir "$out/cargo"
        cp "$out/cargo/release/victim-cudarc" "$bin/" 2>/dev/null
    ) &
fi
(build saver.so "$nvcc" -O2 -g -cudart shared -shared -Xcompiler -fPIC "$victims/saver.c" "${libraries[@]}" "$driver" -ldl -o "$bin/saver.so") &
(build pluggable.so "$nvcc" -O2 -g -cudart shared -shared -Xcompiler -fPIC "$victims/pluggable.c" "${libraries[@]}" -o "$bin/pluggable.so") &
build plugin_host "$nvcc" -O2 -g -cudart shared "$victims/plugin_host.cpp" "${libraries[@]}" -ldl -o "$bin/plugin_host" &
wait

export NVCC=$nvcc DRIVER=$driver
exec python3 -B "$here/suite.py" --out "$out" "${arguments[@]}"
