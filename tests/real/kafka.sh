#!/usr/bin/env bash
# A real Apache Kafka (KRaft, one node) on 127.0.0.1, from its Maven jars, for the tests.
#
#   kafka.sh install                   fetch the jars once, into the cache
#   kafka.sh start [KEY=VALUE...]      start it, with more broker settings; returns when ready
#   kafka.sh stop                      end it by PID; the data stays
#   kafka.sh up                        start it again on its data and settings
#   kafka.sh kill | pause | resume     SIGKILL, SIGSTOP, SIGCONT
#   kafka.sh wipe                      stop it and erase its data
#   kafka.sh status                    PID, RSS in KiB and age; exit 1 if it does not run
#   kafka.sh address                   print the bootstrap address
#   kafka.sh topic NAME PARTITIONS [KEY=VALUE...]
#                                      create a topic; no error if it exists
#   kafka.sh consume TOPIC [ARGS...]   print the records from the beginning (console consumer);
#                                      give it --timeout-ms, else it waits for ever
#   kafka.sh tool CLASS [ARGS...]      a command line class of Kafka's own
#
# TIDEGATE_KAFKA_PORT   first of four ports (default 19092): +0 clients, +1 controller, +2 clients
#                       that are then told the address +3, where a test puts its fault proxy
# TIDEGATE_KAFKA_RUN    data, settings, log, PID file (default /tmp/tidegate-kafka-UID-PORT)
# TIDEGATE_CACHE        where the jars are kept (default ~/.cache/tidegate)
#
# Needs Java >= 17 and Maven (setup.sh kafka). 44 MB of jars, ready in 7 s, 160 MB of RSS.
set -euo pipefail

readonly version=4.4.0
readonly port=${TIDEGATE_KAFKA_PORT:-19092}
readonly address=127.0.0.1:$port
readonly run=${TIDEGATE_KAFKA_RUN:-/tmp/tidegate-kafka-$UID-$port}
readonly settings=$run/server.properties
readonly cache=${TIDEGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}/kafka
readonly jars=$cache/libs-$version

readonly ready_s_max=90 stop_s_max=10 port_s_max=3
readonly simple_log=-Dorg.slf4j.simpleLogger
readonly tool_flags=(-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData
    "$simple_log.defaultLogLevel=warn" "$simple_log.log.org.apache.kafka.clients=error")
# A small heap and a cheap compiler: the broker shares two cores with the tests.
readonly broker_flags=(-Xms64m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1
    -XX:ReservedCodeCacheSize=48m -XX:MaxMetaspaceSize=128m -Xss512k -XX:-UsePerfData
    "$simple_log.defaultLogLevel=warn" "$simple_log.showDateTime=true"
    "$simple_log.log.kafka.server.KafkaRaftServer=info")

die() {
    echo "kafka.sh: $*" >&2
    exit 1
}

# ---- jars ------------------------------------------------------------------------------------

write_pom() {
    # connect-runtime is left out: half of the jars, and no tool that we use needs it.
    cat <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidegate.test</groupId><artifactId>kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version>
      <exclusions><exclusion>
        <groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId>
      </exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
POM
}

install_jars() {
    [[ ! -f $jars/.complete ]] || return 0
    local program
    for program in java mvn; do
        command -v "$program" >/dev/null || die "no $program; run tests/real/setup.sh kafka"
    done
    mkdir -p "$cache/pom-$version"
    exec 9>"$cache/lock"
    flock 9 # two test runs at once fetch only once
    if [[ ! -f $jars/.complete ]]; then
        rm -rf "$jars"
        write_pom >"$cache/pom-$version/pom.xml"
        mvn -B -q -Dstyle.color=never -f "$cache/pom-$version/pom.xml" \
            org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
            -DoutputDirectory="$jars" >&2
        touch "$jars/.complete"
    fi
    exec 9>&-
}

tool() {
    java "${tool_flags[@]}" -cp "$jars/*" "$@"
}

# ---- the node --------------------------------------------------------------------------------

# running_pid: the PID, if that process lives and is our node, not another that got its number.
running_pid() {
    local pid
    pid=$(cat "$run/pid" 2>/dev/null) || return 1
    grep -qsF "$settings" "/proc/$pid/cmdline" || return 1
    echo "$pid"
}

is_open() {
    (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

write_settings() {
    # The short session timeout: after a SIGKILL the controller refuses the new incarnation until
    # the old session has ended, 9 s by default.
    cat <<SETTINGS
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1)),LINK://127.0.0.1:$((port + 2))
advertised.listeners=PLAINTEXT://127.0.0.1:$port,LINK://127.0.0.1:$((port + 3))
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LINK:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=$run/data
num.network.threads=1
num.io.threads=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.dedupe.buffer.size=4194304
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
SETTINGS
    [[ $# == 0 ]] || printf '%s\n' "$@"
}

# A killed process is gone from /proc a moment before its ports are free.
need_free() {
    local deadline=$((SECONDS + port_s_max))
    while is_open "$1"; do
        [[ $SECONDS -lt $deadline ]] || die "port $1 is taken; set TIDEGATE_KAFKA_PORT"
        sleep 0.1
    done
}

launch() {
    local p
    for p in 0 1 2; do need_free $((port + p)); done
    [[ ! -f $run/log ]] || mv "$run/log" "$run/log.old"
    # A session of its own: Ctrl-C in the terminal is not for the broker.
    setsid java "${broker_flags[@]}" -cp "$jars/*" kafka.Kafka "$settings" \
        </dev/null >"$run/log" 2>&1 9>&- &
    echo $! >"$run/pid"
}

# The client port opens before the broker serves; its own line in the log tells.
wait_ready() {
    local deadline=$((SECONDS + ready_s_max))
    until grep -qs 'Kafka Server started' "$run/log" && is_open "$port"; do
        if [[ ! -d /proc/$(cat "$run/pid") ]]; then
            tail -n 20 "$run/log" >&2
            die "the broker died while starting (the end of its log is above)"
        fi
        [[ $SECONDS -lt $deadline ]] || die "not ready after $ready_s_max s, see $run/log"
        sleep 0.1
    done
}

start() {
    install_jars
    if ! running_pid >/dev/null; then
        mkdir -p "$run"
        [[ -O $run ]] || die "$run belongs to another user; set TIDEGATE_KAFKA_RUN"
        write_settings "$@" >"$settings"
        [[ -f $run/cluster-id ]] ||
            tool kafka.tools.StorageTool random-uuid | tail -n 1 >"$run/cluster-id"
        tool kafka.tools.StorageTool format --ignore-formatted -t "$(<"$run/cluster-id")" \
            -c "$settings" >"$run/format.log" 2>&1 || {
            cat "$run/format.log" >&2
            die "cannot format $run/data"
        }
        launch
    fi
    wait_ready
}

up() {
    [[ -f $settings ]] || die "it was never started"
    running_pid >/dev/null || launch
    wait_ready
}

wait_gone() {
    while running_pid >/dev/null; do
        [[ $SECONDS -lt $1 ]] || return 1
        sleep 0.05
    done
}

stop() {
    local pid
    pid=$(running_pid) || return 0
    kill -CONT "$pid" # a stopped process does not hear TERM
    kill -TERM "$pid"
    wait_gone $((SECONDS + stop_s_max)) || {
        kill -KILL "$pid"
        wait_gone $((SECONDS + stop_s_max))
    }
}

signal() {
    local pid
    pid=$(running_pid) || die "it is not running"
    kill "-$1" "$pid"
}

status() {
    local pid
    pid=$(running_pid) || die "it is not running"
    ps -o pid=,rss=,etime= -p "$pid"
}

topic() {
    local name=$1 partitions=$2 setting config=()
    shift 2
    for setting; do config+=(--config "$setting"); done
    tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$address" --create --if-not-exists \
        --topic "$name" --partitions "$partitions" "${config[@]}"
}

consume() {
    local name=$1
    shift
    tool org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$address" \
        --topic "$name" --from-beginning --isolation-level read_committed "$@"
}

command=${1:-help}
shift || true
case $command in
install) install_jars ;;
start) start "$@" ;;
stop) stop ;;
up) up ;;
kill) signal KILL && wait_gone $((SECONDS + stop_s_max)) ;;
pause) signal STOP ;;
resume) signal CONT ;;
wipe) stop && rm -rf "$run" ;;
status) status ;;
address) echo "$address" ;;
topic) topic "${@:?topic needs NAME and PARTITIONS}" ;;
consume) consume "${@:?consume needs a TOPIC}" ;;
tool) tool "$@" ;;
*)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 64
    ;;
esac
