#!/usr/bin/env bash
# Trains on two hosts without a scheduler. Run it once on each host, with the same RENDEZVOUS: an
# address and port of host 0 that host 1 can reach:
#
#   HOST=0 RENDEZVOUS=192.0.2.10:9000 CERTS=certs/192.0.2.10 ./two-hosts.sh --model mlp
#   HOST=1 RENDEZVOUS=192.0.2.10:9000 CERTS=certs/192.0.2.11 ./two-hosts.sh --model mlp
#
# Create the certificates once on any host, and copy them to both:
#
#   distribute-cli certs --out certs --hosts 192.0.2.10,192.0.2.11
#
# Arguments are passed to `train`. CHECKPOINTS must be on a file system that both hosts share. After
# a failure all workers restart from the newest checkpoint, at most MAX_RESTARTS times. SIGINT or
# SIGTERM to either script saves a checkpoint and ends with 42; run both again to continue.
set -euo pipefail

program=${PROGRAM:-distribute-cli}
host=${HOST:?0 on the host that RENDEZVOUS names, 1 on the other}
rendezvous=${RENDEZVOUS:?IP:PORT of host 0}
certs=${CERTS:?the directory of this host that certs wrote}
checkpoints=${CHECKPOINTS:-checkpoints}
logs=${LOGS:-logs}
workers=${WORKERS:-1}
max_restarts=${MAX_RESTARTS:-3}
token_file=${TOKEN_FILE:-$certs/../token}

# Anyone who can read the token can take part in the job.
mode=$(stat --dereference --format=%a "$token_file")
if [ "$mode" != 600 ] && [ "$mode" != 400 ]; then
    echo "$token_file can be read by others (mode $mode): chmod 600 $token_file" >&2
    exit 2
fi
# In the environment, not in the arguments, which all users of a host can see.
DISTRIBUTE_JOB_TOKEN=$(<"$token_file")
export DISTRIBUTE_JOB_TOKEN

# --certs encrypts both the messages of the launchers and the data of the workers.
exec "$program" launch --rendezvous "$rendezvous" --hosts 2 --host "$host" --certs "$certs" \
    --workers "$workers" --max-restarts "$max_restarts" --log-dir "$logs/host-$host" -- \
    "$program" train --strategy multi-worker --certs "$certs" --restartable \
    --checkpoint-dir "$checkpoints" "$@"
