#!/usr/bin/env bash
# Hosts on this machine: network namespaces, joined by a switch in user space whose links have a
# delay, a loss, a rate and cuts. To be sourced by a script, which calls
#
#   hosts_up target/debug/network-switch DIR 2   # 10.205.0.1 and .2; DIR gets the switch's answers
#   on 0 COMMAND...                       # on the first one
#   link '*' '*' delay=20ms loss=1%       # replaces everything about these directions; see the
#   link 0 1 cut                          # first lines of network-switch
#   frames                                # what became of the frames, a line for each direction
#   hosts_down                            # removes everything again
#
# Needs root, iproute2 and /dev/net/tun; hosts_up returns 1 where they are missing, with the reason
# in $hosts_why.

HOSTS=()
hosts_why=""
switch_pid=""

# host_address N: of the N-th host.
host_address() {
    echo "10.205.0.$(($1 + 1))"
}

# port N: the device of the N-th host; the names of other runs differ.
host_port() {
    echo "hp$$-$1"
}

hosts_up() {
    local program=$1 folder=$2 count=$3 host names=()
    if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null; then
        hosts_why="needs root and iproute2's ip"
        return 1
    fi
    if [ ! -x "$program" ]; then
        hosts_why="no $program: cargo build -p hostile"
        return 1
    fi
    for ((host = 0; host < count; host++)); do
        names+=("$(host_port "$host")")
    done
    # The switch ends when its standard input does, however this script ends.
    coproc SWITCH { exec "$program" "${names[@]}" 2>"$folder/switch.err"; }
    switch_pid=$SWITCH_PID
    if ! switch_says || [ "$switch_answer" != ready ]; then
        hosts_why="no TAP devices: $(head -n 1 "$folder/switch.err")"
        switch_pid=""
        return 1
    fi
    for ((host = 0; host < count; host++)); do
        if ! ip netns add "distribute-host-$$-$host" 2>"$folder/ip.err"; then
            hosts_why="no network namespaces: $(head -n 1 "$folder/ip.err")"
            return 1
        fi
        HOSTS+=("distribute-host-$$-$host")
        ip link set "${names[host]}" netns "${HOSTS[host]}"
        ip -n "${HOSTS[host]}" link set lo up
        ip -n "${HOSTS[host]}" address add "$(host_address "$host")/24" dev "${names[host]}"
        ip -n "${HOSTS[host]}" link set "${names[host]}" up
    done
}

# on HOST COMMAND...
on() {
    local host=$1
    shift
    ip netns exec "${HOSTS[host]}" "$@"
}

# The next line of the switch, in $switch_answer.
switch_says() {
    read -r -t 10 -u "${SWITCH[0]}" switch_answer
}

# link FROM TO SETTING...: hosts by number, or '*' for all.
link() {
    local from=$1 to=$2
    shift 2
    [ "$from" = '*' ] || from=$(host_port "$from")
    [ "$to" = '*' ] || to=$(host_port "$to")
    echo "$from $to $*" >&"${SWITCH[1]}"
    if ! switch_says || [ "$switch_answer" != ok ]; then
        echo "link $from $to $*: the switch says '$switch_answer'" >&2
        return 1
    fi
}

frames() {
    echo counters >&"${SWITCH[1]}"
    while switch_says && [ "$switch_answer" != ok ]; do
        echo "$switch_answer"
    done
}

hosts_down() {
    local host pid
    for host in "${HOSTS[@]}"; do
        for pid in $(ip netns pids "$host" 2>/dev/null); do
            kill -KILL "$pid" 2>/dev/null || true
        done
        ip netns delete "$host" 2>/dev/null || true
    done
    HOSTS=()
    [ -z "$switch_pid" ] || kill -TERM "$switch_pid" 2>/dev/null || true
    switch_pid=""
}
