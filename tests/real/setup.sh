#!/usr/bin/env bash
# Installs what the tests need on Debian 12 (newer works, too). Idempotent: when nothing is missing
# it asks for nothing, changes nothing and takes under a second.
#
#   setup.sh [GROUP...]     default: all groups
#
#   build     C compiler and linker for the crates with C code
#   kafka     Java >= 17 and Maven (for the jars of Apache Kafka), kcat
#   kubectl   checks for Go >= 1.26, which Debian does not have
#   real      mosquitto and its clients, and paho for Python: MQTT that is not ours
#   power     a disk whose writes are logged: qemu-storage-daemon, FUSE, ext4's tools
#   cross     aarch64 linker, libraries, qemu-user and Rust's standard library
#   systemd   systemd-analyze, systemd-nspawn and what makes a root file system
#
# Packages are installed as root, or through sudo. No service of a new package is started.
set -euo pipefail
export LC_ALL=C

readonly all_groups=(build kafka kubectl real power cross systemd)
readonly go_min=26 java_min=17
readonly target=aarch64-unknown-linux-gnu

# What a user must hear goes to stderr; log holds apt's own words until they are needed.
log=$(mktemp)
policy=""
cleanup() {
    rm -f "$log"
    [[ -z $policy ]] || as_root rm -f "$policy"
}
trap cleanup EXIT

die() {
    echo "setup.sh: $*" >&2
    exit 1
}

as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

is_installed() {
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq \
        -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 "$@" >>"$log" 2>&1 && return
    tail -n 30 "$log" >&2
    die "apt-get $1 failed (its last lines are above)"
}

# A broker that Debian starts on port 1883 would take the port of ours: deny starts meanwhile.
deny_service_starts() {
    [[ ! -e /usr/sbin/policy-rc.d ]] || return 0
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
}

# install PACKAGE...: only those that are missing.
install() {
    local package missing=()
    for package; do
        is_installed "$package" || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if [[ $(id -u) != 0 ]] && ! command -v sudo >/dev/null; then
        die "packages are missing and there is no sudo; run as root:" \
            "apt-get install --no-install-recommends ${missing[*]}"
    fi
    echo "setup.sh: installing ${missing[*]}" >&2
    if [[ " ${missing[*]} " == *:arm64* ]] && ! dpkg --print-foreign-architectures | grep -qx arm64; then
        as_root dpkg --add-architecture arm64
    fi
    deny_service_starts
    apt update
    apt install -y --no-install-recommends "${missing[@]}"
}

java_version() {
    java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

kafka_packages() {
    local version=""
    ! command -v java >/dev/null || version=$(java_version)
    [[ ${version:-0} -ge $java_min ]] || echo default-jre-headless
    command -v mvn >/dev/null || echo maven
    command -v kcat >/dev/null || echo kcat
}

# go_version: the minor number of Go 1.N, or nothing.
go_version() {
    local go
    go=$(command -v go || echo /usr/local/go/bin/go)
    # Without "local", an old Go would first download a newer one to answer.
    GOTOOLCHAIN=local "$go" env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p' || true
}

check_go() {
    local version
    version=$(go_version)
    [[ ${version:-0} -ge $go_min ]] && return
    die "Go ${version:+1.$version is too old: }1.$go_min or newer is needed to build kubectl;" \
        "unpack one from https://go.dev/dl/ to /usr/local/go, or put it on PATH"
}

# Rust's aarch64 library: rustup's where it can be had, else Debian's own compiler, a second and
# newer one in /usr/bin. cross/build-native.sh looks in the same order.
install_rust_target() {
    if command -v rustup >/dev/null; then
        rustup target list --installed 2>/dev/null | grep -qx "$target" && return
        timeout 300 rustup target add "$target" >>"$log" 2>&1 && return
    fi
    install rustc-web cargo-web libstd-rust-web-dev:arm64
}

packages_of() {
    case $1 in
    build) echo gcc libc6-dev ;;
    kafka) kafka_packages ;;
    kubectl) ;;
    real) echo mosquitto mosquitto-clients python3-paho-mqtt ;;
    power) echo qemu-utils qemu-system-common e2fsprogs fuse3 mount ;;
    cross) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static libc6:arm64 libgcc-s1:arm64 ;;
    systemd) echo systemd systemd-container mmdebstrap debian-archive-keyring ;;
    *) die "no group '$1'; there are: ${all_groups[*]}" ;;
    esac
}

main() {
    local group groups=("$@") packages=""
    [[ $# -gt 0 ]] || groups=("${all_groups[@]}")
    command -v apt-get >/dev/null ||
        die "needs Debian (apt-get); elsewhere install by hand what the head of this file names"
    for group in "${groups[@]}"; do
        packages+=" $(packages_of "$group")"
    done
    # Before the slow part: a missing Go should be heard of at once.
    [[ " ${groups[*]} " != *" kubectl "* ]] || check_go
    # shellcheck disable=SC2086 # a list of words
    install $packages
    [[ " ${groups[*]} " != *" cross "* ]] || install_rust_target
    echo "setup.sh: ready (${groups[*]})" >&2
}

main "$@"
