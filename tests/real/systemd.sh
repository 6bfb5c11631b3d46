#!/usr/bin/env bash
# The unit under a real systemd.
#
#   systemd.sh verify        the unit file: no warning, and an exposure of at most 1.5
#   systemd.sh boot BINARY   a Debian of its own, booted under systemd-nspawn with no network:
#                            ready through Type=notify, readiness over HTTP, fields in the
#                            journal, watchdog, clean stop, second start
#
# TIDEGATE_CACHE   where the root file system is kept (default ~/.cache/tidegate)
#
# Needs the packages of setup.sh systemd; boot also needs root, or sudo. The first boot builds the
# root file system (1-2 minutes, 100 MB), the later ones take 15 s.
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly repo
readonly cache=${TIDEGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}/systemd
readonly unit=$repo/systemd/tidegate.service
readonly exposure_max=15 # tenths
readonly boot_s_max=180

die() {
    echo "systemd.sh: $*" >&2
    exit 1
}

# Root's own, as it holds files of other users; removed on every exit.
work=$(mktemp -d)
trap 'as_root rm -rf "$work"' EXIT

as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

# ---- verify ----------------------------------------------------------------------------------

verify() {
    local words
    # The daemon is not installed on this machine, and a missing program is a warning.
    sed 's|^ExecStart=/usr/bin/tidegate|ExecStart=/bin/true|' "$unit" >"$work/tidegate.service"
    # An unknown key is only a warning with status 0, so any word fails.
    words=$(systemd-analyze verify --man=no "$work/tidegate.service" 2>&1) || true
    [[ -z $words ]] || die "systemd-analyze verify says: $words"
    if ! systemd-analyze --offline=true security --threshold=$exposure_max --no-pager \
        "$work/tidegate.service" >"$work/security"; then
        cat "$work/security" >&2
        die "the unit is more exposed than $exposure_max tenths (see above)"
    fi
    grep 'Overall exposure' "$work/security"
}

# ---- boot ------------------------------------------------------------------------------------

# build_rootfs TAR: a Debian of the host's release, so that its glibc suits the binary.
build_rootfs() {
    local suite sources=()
    # shellcheck disable=SC1091 # the host's
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
    # The mirror that this machine uses, if it says so in the usual place.
    [[ ! -s /etc/apt/sources.list.d/debian.sources ]] || sources=(/etc/apt/sources.list.d/debian.sources)
    echo "systemd.sh: building a root file system (once)" >&2
    as_root mmdebstrap --quiet --variant=essential --include=systemd-sysv,systemd,dbus \
        --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        "$suite" "$1.part.tar" "${sources[@]}" >&2
    mv "$1.part.tar" "$1"
}

# rootfs: the cached archive's path; its name says from what it was made.
rootfs() {
    local name tar
    name=$(declare -f build_rootfs | cat - /etc/os-release | sha256sum | cut -c1-12)
    tar=$cache/rootfs-$name.tar
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9 # two test runs at once build only once
    [[ -f $tar ]] || build_rootfs "$tar"
    exec 9>&-
    echo "$tar"
}

# The checks, as they run inside. Each writes one line, "ok NAME" or "FAILED NAME".
write_checks() {
    cat <<'CHECKS'
#!/bin/bash
# Runs in the booted system, ordered after the daemon's start.
set -u

check() {
    local name=$1
    shift
    if "$@"; then
        echo "ok $name" >>/check/results
    else
        echo "FAILED $name" >>/check/results
        return 1
    fi
}

show() {
    systemctl show --value -p "$1" tidegate.service
}

# within SECONDS COMMAND...: until it succeeds.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [[ $SECONDS -lt $deadline ]] || return 1
        sleep 0.1
    done
}

is_active() {
    systemctl -q is-active tidegate.service
}

# With Type=notify "active" means that READY=1 came.
became_ready() {
    [[ $(show Type) == notify ]] && within 30 is_active
}

answers_200() {
    local line
    exec 3<>/dev/tcp/127.0.0.1/7480 || return 1
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$1" >&3
    read -r -t 5 line <&3
    exec 3<&-
    [[ $line == "HTTP/1.1 200"* ]]
} 2>/dev/null

owns_its_state() {
    [[ $(stat -c '%U %a' /var/lib/tidegate) == "tidegate 700" ]]
}

logs_fields() {
    journalctl --sync
    journalctl -u tidegate.service -o json | grep '"TARGET":"tidegate' | grep -q '"PRIORITY":"[0-7]"'
}

# The watchdog of this system is set to 3 s: a daemon that never feeds it does not get through 7.
feeds_the_watchdog() {
    sleep 7
    is_active && [[ $(show NRestarts) == 0 ]]
}

is_another() {
    local pid
    pid=$(show MainPID)
    [[ $pid != 0 && $pid != "$1" ]] && is_active
}

is_restarted_when_stuck() {
    local pid
    pid=$(show MainPID)
    [[ $pid != 0 ]] && kill -STOP "$pid" && within 30 is_another "$pid" && [[ $(show NRestarts) == 1 ]] &&
        journalctl -u tidegate.service | grep -q 'Watchdog timeout'
}

stops_cleanly() {
    timeout 10 systemctl stop tidegate.service || return 1
    [[ "$(show ActiveState) $(show Result) $(show ExecMainStatus)" == "inactive success 0" ]]
}

starts_again() {
    systemctl start tidegate.service && is_active
}

# Without this one the others have nothing to look at.
check "is ready through Type=notify" became_ready || exit 1
check "/livez answers 200" within 5 answers_200 /livez
check "/readyz answers 200" within 5 answers_200 /readyz
check "owns its state directory, mode 700" owns_its_state
check "logs structured fields to the journal" logs_fields
check "feeds the watchdog" feeds_the_watchdog
check "is restarted when stuck" is_restarted_when_stuck
check "stops cleanly within 10 s" stops_cleanly
check "starts again on its data" starts_again
check "/readyz answers 200 after that" within 5 answers_200 /readyz
echo "end" >>/check/results
CHECKS
}

# prepare ROOT BINARY: what a package would install, and the checks.
prepare() {
    local root=$1 binary=$2
    as_root install -D -m 755 "$binary" "$root/usr/bin/tidegate"
    as_root install -D -m 644 "$unit" "$root/usr/lib/systemd/system/tidegate.service"
    as_root install -D -m 644 "$repo/systemd/tidegate.sysusers" "$root/usr/lib/sysusers.d/tidegate.conf"
    as_root install -D -m 644 "$repo/etc/tidegate/tidegate.toml" "$root/etc/tidegate/tidegate.toml"
    as_root env SYSTEMD_LOG_LEVEL=warning systemd-sysusers --root="$root" tidegate.conf

    write_checks >"$work/checks"
    as_root install -D -m 755 "$work/checks" "$root/check/run"
    printf '%s\n' '[Service]' 'WatchdogSec=3s' >"$work/dropin"
    as_root install -D -m 644 "$work/dropin" "$root/etc/systemd/system/tidegate.service.d/test.conf"
    # The journal is written out by a step of its own: also when the checks did not get to the end.
    printf '%s\n' '[Unit]' 'After=tidegate.service' 'SuccessAction=poweroff' 'FailureAction=poweroff' \
        '[Service]' 'Type=oneshot' 'TimeoutStartSec=120s' 'ExecStart=/check/run' \
        'ExecStopPost=/bin/sh -c "journalctl --sync; journalctl -u tidegate.service -o short-precise >/check/journal"' \
        '[Install]' 'WantedBy=multi-user.target' >"$work/check.service"
    as_root install -D -m 644 "$work/check.service" "$root/usr/lib/systemd/system/tidegate-check.service"
    as_root systemctl --quiet --root="$root" enable tidegate.service tidegate-check.service

    # A fixed identity and no first-boot questions: systemd-firstboot waits for a key press.
    echo 0123456789abcdef0123456789abcdef >"$work/machine-id"
    as_root install -m 444 "$work/machine-id" "$root/etc/machine-id"
    as_root systemctl --quiet --root="$root" mask systemd-firstboot.service
    as_root rm -f "$root/etc/fstab"
}

run_container() {
    local flags=(--register=no)
    # With no systemd on the host (a container, CI) there is nobody to ask for a scope.
    [[ -d /run/systemd/system ]] || flags+=(--keep-unit)
    as_root env SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout -k 10 $boot_s_max \
        systemd-nspawn -q -D "$1" --boot "${flags[@]}" --private-network --console=pipe \
        </dev/null >"$work/console" 2>&1
}

boot() {
    local binary=$1 root=$work/root tar status=0
    [[ -x $binary ]] || die "no program at $binary"
    [[ -f $repo/etc/tidegate/tidegate.toml ]] || die "no etc/tidegate/tidegate.toml"
    tar=$(rootfs)
    mkdir "$root"
    as_root tar -xf "$tar" -C "$root"
    prepare "$root" "$binary"
    run_container "$root" || status=$?

    as_root grep -vx end "$root/check/results" 2>/dev/null || true
    if [[ $status == 0 ]] && as_root grep -qx end "$root/check/results" &&
        ! as_root grep -q '^FAILED' "$root/check/results"; then
        return
    fi
    echo "---- journal of the daemon" >&2
    as_root cat "$root/check/journal" >&2 || tail -n 50 "$work/console" >&2
    die "the boot test failed (nspawn's status: $status)"
}

case ${1:-} in
verify) verify ;;
boot) boot "${2:?boot needs the path of a tidegate binary}" ;;
*)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 64
    ;;
esac
