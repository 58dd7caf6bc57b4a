//! The texts below the flags in `--help`: examples and exit codes.

pub(super) const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 failed for a possibly temporary reason (also: stopped by a signal without \
a checkpoint), 2 the same command would fail again, 42 stopped by a signal after a checkpoint was \
saved, 43 the training diverged (NaN), 128 + N ended by signal N (130 Ctrl-C, 143 SIGTERM) before \
or after training, or by a second signal.";

pub(super) const TRAIN: &str = "\
Examples:
  distribute-cli train
  distribute-cli train --checkpoint-dir saved --restartable
  distribute-cli train --dataset mnist --data-dir DIR --epochs 5
  distribute-cli train --dataset csv:films.csv --model text --log-dir logs
  distribute-cli train --dry-run --replicas 4
  distribute-cli train --strategy one-device --output json > run.jsonl

The first Ctrl-C ends training after the running step: with --checkpoint-dir it saves and ends with \
42, without it nothing is saved and it ends with 1. The second Ctrl-C ends at once, with 130.";

pub(super) const LAUNCH: &str = "\
Examples:
  distribute-cli launch --workers 2 -- \\
      distribute-cli train --strategy multi-worker
  distribute-cli launch --workers 2 --max-restarts 3 -- \\
      distribute-cli train --strategy multi-worker --checkpoint-dir saved \\
      --restartable
  distribute-cli launch --workers 2 --ps 1 -- \\
      distribute-cli train --strategy parameter-server

Exit codes: 0 success, 42 stopped by a signal after a checkpoint was saved, \
otherwise the exit code of the process that failed first (128 + N for signal N).";

pub(super) const DOCTOR: &str = "\
Examples:
  distribute-cli doctor
  distribute-cli launch --workers 4 -- distribute-cli doctor --peers
  distribute-cli doctor --peers --rendezvous 192.0.2.10:9000 --hosts 2 \\
      --host 0 --certs certs/192.0.2.10

Exit codes of --peers: 0 all processes reach each other, 1 one is missing or a connection is broken \
(rank 0 says which), 2 the flags or the cluster are wrong.";

pub(super) const EVALUATE: &str = "\
Examples:
  distribute-cli evaluate --checkpoint-dir saved
  distribute-cli evaluate --checkpoint-dir saved --split all --strategy mirrored
  distribute-cli evaluate --checkpoint-dir saved --dataset csv:others.csv
  distribute-cli evaluate --checkpoint-dir saved --report --picture confusion.svg";

pub(super) const PREDICT: &str = "\
Examples:
  distribute-cli predict --checkpoint-dir saved > predictions.csv
  distribute-cli predict --checkpoint-dir saved --split all --predictions all.csv
  distribute-cli predict --checkpoint-dir saved --dataset csv:others.csv \\
      --csv-header yes";

pub(super) const EXPORT: &str = "\
Examples:
  distribute-cli export saved --to model.keras
  distribute-cli export saved --to model.weights.h5
  distribute-cli export saved/step-00000120 --to model.safetensors

In Python: `keras.models.load_model(\"model.keras\")`, `model.load_weights(\"model.weights.h5\")`.";

pub(super) const CERTS: &str = "\
Examples:
  distribute-cli certs --out certs --hosts node1,node2
  distribute-cli certs --out certs --hosts 192.0.2.10,192.0.2.11 --days 30";

pub(super) const NEW: &str = "\
Examples:
  distribute-cli new digits
  distribute-cli new ~/programs/digits --source ~/distribute";

pub(super) const COMPLETIONS: &str = "\
Examples:
  distribute-cli completions bash > \\
      ~/.local/share/bash-completion/completions/distribute-cli
  distribute-cli completions fish > \\
      ~/.config/fish/completions/distribute-cli.fish";

pub(super) const MAN: &str = "\
Examples:
  distribute-cli man --out ~/.local/share/man/man1
  man distribute-cli-train";

#[cfg(feature = "full")]
pub(super) const BENCH: &str = "\
Every round measures each competitor once, so that other load on the machine slows all of them \
equally; medians over the rounds are compared.

Examples:
  distribute-cli bench train --replicas 1,2
  distribute-cli bench all-reduce --world 2 --transport shm --bytes 64K,1M,100M";
