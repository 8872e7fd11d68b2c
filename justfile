# Short names for the commands in CONTRIBUTING.md; each is a plain command too.

_list:
    @just --list --unsorted

# Run the tests of all crates, Parquet export included (no GPU needed)
test:
    cargo test --workspace --locked --features culeak-cli/full

# Run the tests of tests/ whose names contain WORDS, e.g. `just one kinds::`
one +WORDS:
    cargo test -p culeak-cli --test main -- {{WORDS}}

# Check formatting and lints
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked --features culeak-cli/full -- -D warnings

# Run everything that CI runs
ci:
    .ci/run

# Rewrite golden texts and screens; read the difference before you commit it
bless:
    CULEAK_BLESS=1 cargo test -p culeak-cli --bin culeak
    git diff --stat

# Show culeak on a program with known leaks
demo:
    cargo run --release -- demo

# Check every interleaving of the lock-free parts
loom:
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --locked -p culeak --no-default-features --release --lib loom
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --locked -p culeak-walker --release --test models

# Run the lock-free parts in Miri and under ThreadSanitizer (nightly toolchain)
sanitize:
    tests/miri.sh
    tests/tsan.sh

# Run the acceptance suite on a machine with a GPU, nvcc and python3
gpu *OPTIONS:
    benches/collect.sh target/collected
    CULEAK_BIN=$PWD/target/collected tests/gpu/run.sh {{OPTIONS}}

# Measure the walker and the recording
bench *NAMES:
    benches/run.sh {{NAMES}}

# Measure culeak beside heaptrack, compute-sanitizer and PyTorch's recorder
compare *OPTIONS:
    benches/compare/run.sh {{OPTIONS}}

# Make the images of the documentation again
images:
    cargo build
    docs/images/make.sh

# Build the wheel for glibc 2.17 and newer into target/dist
wheel:
    cli/python/build.sh --portable target/dist
