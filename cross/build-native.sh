#!/usr/bin/env bash
# Builds the aarch64 daemon on a Debian machine, with no container engine.
#
#   cross/build-native.sh [CARGO ARGS...]   prints the binary's path on stdout, its size on stderr
#
# Rust's aarch64 library is rustup's if it is installed, else that of Debian's own compiler
# (rustc-web, a second and newer compiler in /usr/bin); tests/real/setup.sh cross installs one of
# them, the linker and the libraries. C parts (ring) are compiled by aarch64-linux-gnu-gcc. The
# result needs glibc >= 2.34 (Debian 12, Ubuntu 22.04, RHEL 9) and runs on any page size.
#
# To try it here: qemu-aarch64-static BINARY --version. Never with -L /usr/aarch64-linux-gnu: that
# glibc hangs in pthread_create; without -L qemu finds Debian's libc6:arm64.
#
# CARGO_TARGET_DIR is respected. About 450 CPU seconds cold, 90 for a change (fat LTO).
set -euo pipefail

readonly target=aarch64-unknown-linux-gnu profile=dist
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(realpath -m "${CARGO_TARGET_DIR:-$repo/target}")
cargo=cargo

die() {
    echo "build-native.sh: $*" >&2
    exit 1
}

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
command -v "$CC_aarch64_unknown_linux_gnu" >/dev/null ||
    die "no $CC_aarch64_unknown_linux_gnu; run tests/real/setup.sh cross"

if rustup target list --installed 2>/dev/null | grep -qx "$target"; then
    :
elif [[ -x /usr/bin/cargo && -d /usr/lib/rustlib/$target ]]; then
    # Another compiler cannot read what the first one built, so it has a target folder of its own.
    out=$out/debian
    cargo=/usr/bin/cargo
    export RUSTC=/usr/bin/rustc PATH=/usr/bin:/usr/sbin:/bin
else
    die "no standard library for $target; run tests/real/setup.sh cross"
fi

(cd "$repo" && CARGO_TARGET_DIR=$out "$cargo" build --locked --profile "$profile" \
    --target "$target" --bin tidegate "$@" >&2)
binary=$out/$target/$profile/tidegate
echo "build-native.sh: $(stat -c %s "$binary") bytes" >&2
echo "$binary"
