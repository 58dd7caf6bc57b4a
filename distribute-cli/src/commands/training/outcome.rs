//! The messages at the end of training.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use distribute_core::TensorData;
use distribute_core::checkpoint::{Section, weights_sha256};
use distribute_fit::callbacks::first_not_finite;
use distribute_fit::{History, Logs, Outcome, RankReport, evaluate, json_number};
use serde_json::json;

use super::{Batches, Run, State, ranks};
use crate::events::{self, EventName};
use crate::failure::Failure;
use crate::flags::OutputFormat;
use crate::notes::note;

impl Run<'_> {
    /// The last line, or the reason for an early end.
    pub(in crate::commands) fn finish(
        &self,
        history: &History,
        state: &State,
        test: &Batches,
        saved: Option<PathBuf>,
    ) -> Result<(), Failure> {
        let step = state.primary()?.step();
        match &history.outcome {
            Outcome::Interrupted => return Err(self.interrupted(step, saved.as_deref())),
            Outcome::NotFinite { .. } => return Err(Failure::diverged(&history.outcome)),
            _ => {}
        }
        // A resumed run may already be complete.
        let last = history.epochs.last();
        let logs = match last {
            Some(record) if !self.ends_with_others() => record.logs.clone(),
            // The weights differ from the weights of the last validation.
            _ => evaluate(&*self.strategy, state, test, self.objective())?.logs,
        };
        if last.is_none() && self.reports() {
            note(&self.nothing_left(&history.outcome, step));
        } else if self.is_told(&history.outcome) && self.reports() {
            note(&history.outcome.to_string());
        }
        let tensors = state.primary()?.to_tensors()?;
        check_finite(&tensors, &logs, step)?;
        let weights = tensors.iter().filter(|(name, _)| Section::Model.has(name));
        let hash = weights_sha256(weights)?;
        if let Some(workers) = self
            .strategy
            .workers()
            .filter(|workers| !workers.is_chief())
        {
            // On standard error: the output of a job is the output of its chief.
            note(&format!(
                "worker {}: {step} steps; weights {hash}",
                workers.index()
            ));
            return Ok(());
        }
        let trained = last.and_then(|record| record.logs.get("loss"));
        self.print(&logs, trained, step, &hash, history.ranks.as_ref())
    }

    /// Whether the reason for the end is printed; an expected end is only printed for people.
    fn is_told(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Completed => false,
            Outcome::EarlyStopped { .. } => true,
            _ => self.args.general.output == OutputFormat::Text,
        }
    }

    /// Whether the final weights differ from the weights after the last step.
    fn ends_with_others(&self) -> bool {
        self.args.training.ema.is_some() || self.args.validation.restore_best
    }

    /// The last line of a run, with the loss of its training if there was any.
    fn print(
        &self,
        logs: &Logs,
        trained: Option<f64>,
        step: u64,
        hash: &str,
        ranks: Option<&RankReport>,
    ) -> Result<(), Failure> {
        let value = |name: &str| {
            let validated = logs.get(&format!("val_{name}"));
            validated.or_else(|| logs.get(name))
        };
        let loss = value("loss");
        let names = logs.iter().map(|(name, _)| name);
        let names = names.filter(|name| *name != "loss" && !name.starts_with("val_"));
        let metrics: Vec<(&str, Option<f64>)> = names.map(|name| (name, value(name))).collect();
        if self.args.general.output == OutputFormat::Json {
            let number = |value: Option<f64>| json!(value.map(json_number));
            let validated: Vec<(String, _)> = metrics
                .iter()
                .map(|(name, value)| (format!("val_{name}"), number(*value)))
                .collect();
            let validated = validated
                .iter()
                .map(|(name, value)| (&**name, value.clone()));
            let losses = [("loss", number(trained)), ("val_loss", number(loss))];
            let event = events::event(
                EventName::Done,
                losses.into_iter().chain(validated).chain([
                    ("steps", json!(step)),
                    ("weights_sha256", json!(hash)),
                    ("ranks", json!(ranks.map(ranks::shares))),
                    ("slow_ranks", json!(ranks.map(ranks::slow))),
                ]),
            );
            return events::line(&event);
        }
        for sentence in ranks.into_iter().flat_map(RankReport::sentences) {
            events::line(&sentence)?;
        }
        let metrics: String = metrics
            .iter()
            .map(|(name, value)| format!("test {name} {:.4}, ", value.unwrap_or(f64::NAN)))
            .collect();
        events::line(&format!(
            "{metrics}test loss {:.4} after {step} steps\nweights {hash}",
            loss.unwrap_or(f64::NAN)
        ))
    }

    /// Why a continued run ends at once, and how to train further.
    fn nothing_left(&self, outcome: &Outcome, step: u64) -> String {
        let (done, flag) = match outcome {
            Outcome::MaxSteps => (format!("all {step} steps"), "--steps"),
            Outcome::EarlyStopped { .. } => {
                let done = format!("{} epochs without improvement", self.patience());
                (done, "--early-stopping")
            }
            _ => (format!("all {} epochs", self.epochs), "--epochs"),
        };
        format!(
            "nothing is left to train: {done} were done before; give a larger {flag} to train on"
        )
    }

    fn patience(&self) -> usize {
        self.args.validation.early_stopping.unwrap_or(0)
    }

    fn interrupted(&self, step: u64, saved: Option<&Path>) -> Failure {
        match (saved, &self.args.files.checkpoint_dir) {
            (Some(path), _) => Failure::preempted(format!(
                "interrupted after step {step}, saved {}; continue with {}",
                path.display(),
                if self.args.files.restartable || self.args.files.resume {
                    "the same command"
                } else {
                    "--restartable"
                }
            )),
            (None, Some(_)) if step == 0 => Failure::preempted(
                "interrupted before the first step; there was nothing to save yet".to_string(),
            ),
            (None, Some(directory)) if !self.reports() => Failure::preempted(format!(
                "interrupted after step {step}, the chief saved into {}",
                directory.display()
            )),
            (None, None) if self.args.cluster.replicate_state.is_some() => {
                Failure::failed(format!(
                    "interrupted after step {step}; nothing is on disk, and what is in memory ends \
                     with the launcher: use --checkpoint-dir to be able to continue then"
                ))
            }
            _ => Failure::failed(format!(
                "interrupted after step {step}, nothing was saved; use --checkpoint-dir to be \
                 able to continue"
            )),
        }
    }
}

/// Checks the weights and the validation after the last update, because no later loss would show
/// its effect.
fn check_finite(
    tensors: &BTreeMap<String, TensorData>,
    logs: &Logs,
    step: u64,
) -> Result<(), Failure> {
    let what = match first_not_finite(tensors) {
        Some(parameter) => format!("the weights are not finite after step {step} ({parameter})"),
        None => match logs
            .iter()
            .find(|(name, loss)| name.ends_with("loss") && !loss.is_finite())
        {
            Some((name, _)) => format!("{name} is not finite after step {step}"),
            None => return Ok(()),
        },
    };
    Err(Failure::diverged(format!(
        "stopped: {what}; lower the learning rate, or limit the gradients with --clip-norm"
    )))
}
