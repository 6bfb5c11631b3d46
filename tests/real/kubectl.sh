#!/usr/bin/env bash
# The stock kubectl, built from its Go module at a pinned version, for the tests.
#
#   kubectl.sh install      build it once into the cache; print its path
#   kubectl.sh run ARGS     run it (built first if need be)
#
# Debian's kubectl is years older than the API that we serve, so we build the current one. Only
# this needs Go >= 1.26. About 4.5 CPU minutes the first time, nothing afterwards.
#
# TIDEGATE_CACHE   where the binary is kept (default ~/.cache/tidegate)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TIDEGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}/kubectl
# The sources pin every module, so their hash names the binary.
pin=$(cat "$here"/kubectl/{main.go,go.mod,go.sum} | sha256sum | cut -c1-12)
kubectl=$cache/$pin/kubectl

die() {
    echo "kubectl.sh: $*" >&2
    exit 1
}

# The usual place of a manual Go installation is often missing from a non-login PATH.
command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin

# Without these flags kubectl calls itself v0.0.0-master and warns about version skew.
version_flags() {
    local module major minor
    module=$(sed -n 's|^\tk8s.io/kubectl v0\.\([0-9.]*\)$|1.\1|p' "$here/kubectl/go.mod")
    [[ -n $module ]] || die "no k8s.io/kubectl v0.X.Y line in kubectl/go.mod"
    IFS=. read -r major minor _ <<<"$module"
    local at="-X k8s.io/component-base/version"
    echo "$at.gitVersion=v$module $at.gitMajor=$major $at.gitMinor=$minor"
}

build() {
    [[ ! -x $kubectl ]] || return 0
    command -v go >/dev/null || die "no go on PATH; run tests/real/setup.sh, it says how to get it"
    mkdir -p "$(dirname "$kubectl")"
    exec 9>"$cache/lock"
    flock 9 # two test runs at once build only once
    if [[ ! -x $kubectl ]]; then
        echo "kubectl.sh: building kubectl (once)" >&2
        # No DWARF: the link needs a fifth less memory, and nobody debugs this binary.
        (cd "$here/kubectl" && CGO_ENABLED=0 GOWORK=off go build -trimpath -buildvcs=false \
            -gcflags=all=-dwarf=false -ldflags "-s -w $(version_flags)" -o "$kubectl.part" .)
        mv "$kubectl.part" "$kubectl"
    fi
    exec 9>&-
}

case ${1:-} in
install)
    build
    echo "$kubectl"
    ;;
run)
    shift
    build
    exec "$kubectl" "$@"
    ;;
*)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 64
    ;;
esac
