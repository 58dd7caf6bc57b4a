//! Names of flags in other programs. A suggestion by spelling alone would be `--lr-schedule` for
//! `--lr`, and `--ps` for `--bs`.

use super::program;

/// The replacement of an unknown flag.
enum Instead {
    /// This flag, if the command has it.
    Flag(&'static str),
    /// Advice that holds for all commands.
    Advice(&'static str),
}

use Instead::{Advice, Flag};

/// The names in Keras, PyTorch, torchrun, Horovod and common scripts.
const OTHER_NAMES: &[(&str, Instead)] = &[
    ("--lr", Flag("--learning-rate")),
    ("--lr-scheduler", Flag("--lr-schedule")),
    ("--scheduler", Flag("--lr-schedule")),
    ("--warmup", Flag("--warmup-steps")),
    ("--bs", Flag("--batch-size")),
    ("--batch", Flag("--batch-size")),
    ("--batchsize", Flag("--batch-size")),
    ("--num-epochs", Flag("--epochs")),
    ("--n-epochs", Flag("--epochs")),
    ("--max-epochs", Flag("--epochs")),
    ("--max-steps", Flag("--steps")),
    ("--num-steps", Flag("--steps")),
    ("--iterations", Flag("--steps")),
    ("--optim", Flag("--optimizer")),
    ("--opt", Flag("--optimizer")),
    ("--wd", Flag("--weight-decay")),
    ("--decay", Flag("--weight-decay")),
    ("--clip", Flag("--clip-norm")),
    ("--clipnorm", Flag("--clip-norm")),
    ("--max-grad-norm", Flag("--clip-norm")),
    ("--gradient-clip-val", Flag("--clip-norm")),
    ("--grad-accum", Flag("--accumulate")),
    ("--gradient-accumulation-steps", Flag("--accumulate")),
    ("--accumulate-grad-batches", Flag("--accumulate")),
    ("--fp16", Advice("write --precision f16")),
    ("--bf16", Advice("write --precision bf16")),
    ("--amp", Advice("write --precision f16 or bf16")),
    ("--mixed-precision", Flag("--precision")),
    ("--dtype", Flag("--precision")),
    ("--random-seed", Flag("--seed")),
    ("--patience", Flag("--early-stopping")),
    ("--data", Flag("--dataset")),
    ("--data-path", Flag("--dataset")),
    ("--train-data", Flag("--dataset")),
    ("--arch", Flag("--model")),
    ("--network", Flag("--model")),
    ("--gpu", Flag("--devices")),
    ("--device", Flag("--devices")),
    (
        "--gpus",
        Advice("write --devices cuda:0,cuda:1,... in `train`, --gpus-per-worker in `launch`"),
    ),
    ("--nproc-per-node", Flag("--workers")),
    ("--np", Flag("--workers")),
    ("--num-proc", Flag("--workers")),
    ("--nnodes", Flag("--hosts")),
    ("--node-rank", Flag("--host")),
    ("--rdzv-endpoint", Flag("--rendezvous")),
    ("--master-addr", Flag("--rendezvous")),
    ("--save-dir", Flag("--checkpoint-dir")),
    ("--output-dir", Flag("--checkpoint-dir")),
    ("--ckpt", Flag("--checkpoint-dir")),
    ("--ckpt-dir", Flag("--checkpoint-dir")),
    ("--checkpoint", Flag("--checkpoint-dir")),
    ("--resume-from", Flag("--checkpoint-dir")),
    ("--pretrained", Flag("--weights")),
    ("--init-checkpoint", Flag("--weights")),
    ("--freeze-layers", Flag("--freeze")),
    ("--logdir", Flag("--log-dir")),
    ("--tensorboard", Flag("--log-dir")),
    ("--log-level", Flag("--log")),
    ("--debug", Advice("write --log debug")),
    (
        "--quiet",
        Advice("write --log error, or --output json and read only its lines"),
    ),
    ("--profile", Flag("--trace")),
    ("--json", Advice("write --output json")),
    (
        "--metrics",
        Advice("loss and accuracy are always shown; --metrics-addr serves them to Prometheus"),
    ),
    (
        "--num-workers",
        Advice("`launch --workers N -- COMMAND` starts processes; data is read without workers"),
    ),
    (
        "--world-size",
        Advice("`launch --workers N -- COMMAND` starts the processes, each with its place"),
    ),
    (
        "--rank",
        Advice("`launch --workers N -- COMMAND` starts the processes, each with its place"),
    ),
    (
        "--local-rank",
        Advice("`launch --workers N -- COMMAND` starts the processes, each with its place"),
    ),
    (
        "--shuffle",
        Advice("training data is always shuffled, by --seed; there is no flag for it"),
    ),
];

/// The replacement of a flag that this command does not have, but other programs or commands have;
/// `has` says whether this command has a flag.
pub(crate) fn instead_of(flag: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    let name = flag.to_lowercase().replace('_', "-");
    if name != flag && has(&name) {
        return Some(format!("did you mean `{name}`?"));
    }
    let (_, instead) = OTHER_NAMES.iter().find(|(other, _)| *other == name)?;
    match instead {
        Flag(flag) if has(flag) => Some(format!("did you mean `{flag}`?")),
        Flag(flag) => Some(elsewhere(flag)),
        Advice(advice) => Some((*advice).to_string()),
    }
}

/// The commands that have a flag which this command lacks.
fn elsewhere(flag: &str) -> String {
    let program = program();
    let name = flag.trim_start_matches("--");
    let has = |command: &&clap::Command| {
        let mut flags = command.get_arguments();
        flags.any(|flag| flag.get_long() == Some(name))
    };
    let commands: Vec<String> = program
        .get_subcommands()
        .filter(has)
        .map(|command| format!("`{} {flag}`", command.get_name()))
        .collect();
    if commands.is_empty() {
        // A flag of the program itself, which all commands accept.
        return format!("did you mean `{flag}`?");
    }
    let commands = commands.join(", ");
    format!("what is called so elsewhere is {commands} here")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether any command has this flag.
    fn is_there(flag: &str) -> bool {
        let name = flag.trim_start_matches("--");
        let program = program();
        let commands = program.get_subcommands().chain([&program]);
        let mut flags = commands.flat_map(clap::Command::get_arguments);
        flags.any(|flag| flag.get_long() == Some(name))
    }

    #[test]
    fn what_is_suggested_is_there_and_what_it_replaces_is_not() {
        for (other, instead) in OTHER_NAMES {
            assert!(instead_of(other, |_| true).is_some());
            let text = match instead {
                Flag(flag) => flag,
                Advice(advice) => advice,
            };
            let words = text.split([' ', '`', ',', ';']);
            for flag in words.filter(|word| word.starts_with("--") && word.len() > 2) {
                assert!(is_there(flag), "{other}: there is no {flag}");
            }
        }
    }

    /// For all commands.
    #[test]
    fn every_other_name_leads_to_a_command_that_has_the_flag() {
        for (other, instead) in OTHER_NAMES {
            let Flag(flag) = instead else { continue };
            let advice = instead_of(other, |_| false).unwrap();
            let commands = advice.matches(&format!("{flag}`")).count();
            assert!(commands > 0, "{other}: {advice}");
        }
    }

    #[test]
    fn a_flag_that_the_command_has_not_is_not_suggested() {
        assert_eq!(instead_of("--learning-rat", |_| false), None);
        let elsewhere = instead_of("--nproc-per-node", |_| false).unwrap();
        assert_eq!(
            elsewhere,
            "what is called so elsewhere is `launch --workers` here"
        );
        let lr = instead_of("--LR", |flag| flag == "--learning-rate").unwrap();
        assert_eq!(lr, "did you mean `--learning-rate`?");
        let same = instead_of("--Batch_Size", |flag| flag == "--batch-size").unwrap();
        assert_eq!(same, "did you mean `--batch-size`?");
    }
}
