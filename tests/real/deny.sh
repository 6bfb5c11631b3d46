#!/usr/bin/env bash
# cargo-deny with no network: licences, advisories, duplicates and sources, by deny.toml.
#
#   deny.sh install   build the pinned cargo-deny once, into the cache
#   deny.sh check     run it; "deny.sh check warn" also shows the duplicates
#
# Advisories come from a snapshot of the RustSec database (public domain by CC0, except where its
# LICENSE.txt says otherwise), so that a check needs no network and two checks of one commit agree. deny.toml refuses one that
# is older than 180 days. To renew it, in a clone of the database:
#   git archive HEAD crates rust LICENSES LICENSE.txt | gzip -9 >rustsec-DATE.tar.gz
#
# TIDEGATE_CACHE   where the tool and the unpacked snapshot are kept (default ~/.cache/tidegate)
#
# About 100 CPU seconds the first time, 5 afterwards.
set -euo pipefail

readonly version=0.20.2
# cargo-deny looks for the default database under this name: the hash is that of its URL.
readonly database_name=advisory-db-3157b0e258782691

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${TIDEGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}/deny
tool=$cache/cargo-deny-$version
readonly repo cache tool

die() {
    echo "deny.sh: $*" >&2
    exit 1
}

# The checks run in seconds either way, so the build is the part to keep short: no optimisation,
# no debug information.
install_tool() {
    [[ ! -x $tool/bin/cargo-deny ]] || return 0
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9 # two test runs at once build only once
    if [[ ! -x $tool/bin/cargo-deny ]]; then
        echo "deny.sh: building cargo-deny $version (once)" >&2
        # Elsewhere than the checkout and its target folder: neither's settings are for this tool.
        (cd "$cache" && env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=false \
            cargo install --quiet --locked --debug --version "$version" --root "$tool" cargo-deny)
    fi
    exec 9>&-
}

# unpack SNAPSHOT FOLDER: as the git repository that cargo-deny wants, with its honest date.
unpack() {
    local at=$2/$database_name newest
    [[ ! -f $at/.git/FETCH_HEAD ]] || return 0
    rm -rf "$2"
    mkdir -p "$at"
    tar -xzf "$1" -C "$at"
    newest=$(grep -rh '^date = ' "$at/crates" | cut -d'"' -f2 | sort | tail -n 1)
    git -C "$at" init -q -b main
    git -C "$at" add -A
    GIT_COMMITTER_DATE="${newest}T00:00:00Z" git -C "$at" -c user.name=snapshot \
        -c user.email=snapshot@localhost -c commit.gpgsign=false commit -qm "$newest"
    touch -d "$newest" "$at/.git/FETCH_HEAD" # staleness is judged by its time
}

check() {
    local snapshots=("$repo"/tests/real/advisories/rustsec-*.tar.gz) snapshot
    snapshot=${snapshots[-1]}
    [[ -f $snapshot ]] || die "no snapshot in tests/real/advisories"
    export TIDEGATE_ADVISORIES
    TIDEGATE_ADVISORIES=$cache/advisories-$(sha256sum "$snapshot" | cut -c1-12)
    unpack "$snapshot" "$TIDEGATE_ADVISORIES"
    # Offline needs every crate of the lock file, also those that no build of ours downloads.
    cargo fetch --quiet --locked --manifest-path "$repo/Cargo.toml"
    "$tool/bin/cargo-deny" --manifest-path "$repo/Cargo.toml" --offline --locked \
        --log-level "${1:-error}" check --hide-inclusion-graph
}

case ${1:-} in
install) install_tool ;;
check) install_tool && check "${2:-}" ;;
*)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 64
    ;;
esac
