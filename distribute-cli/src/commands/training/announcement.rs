//! The messages at the begin of training.

use distribute_core::available_cores;
use distribute_fit::{Callback, Control};
use serde_json::json;

use super::Run;
use crate::events::{self, EventName, Told};
use crate::flags::OutputFormat;
use crate::notes::{note, wrapped};
use crate::task::start_notes;

/// Prints the description of a run, as soon as its checkpoint is accepted.
#[derive(Debug)]
pub(super) struct Announcement {
    event: Option<String>,
    notes: Vec<String>,
}

impl Callback for Announcement {
    fn on_train_begin(&mut self, _: &mut Control<'_>) -> distribute_core::Result<()> {
        for text in &self.notes {
            note(&wrapped(text, 4));
        }
        if let Some(event) = &self.event {
            Told::default().line(event);
        }
        Ok(())
    }
}

impl Run<'_> {
    /// The description, once all checks have passed.
    pub(super) fn announcement(&self, continued: Option<u64>) -> Announcement {
        let details = start_notes(&self.task).chain(self.cluster.iter().cloned());
        let details = details.chain(self.device_reduction());
        let details = details.chain(self.short_batch(self.global_batch));
        let details = details.chain(self.beyond_the_cores(available_cores()));
        if self.args.general.output == OutputFormat::Json {
            return Announcement {
                event: Some(self.start_event(continued)),
                notes: details.collect(),
            };
        }
        let continued = continued.map(|step| format!("continuing after step {step}"));
        let notes = self.headlines().into_iter().chain(details);
        Announcement {
            event: None,
            notes: notes.chain(continued).collect(),
        }
    }

    /// Examples of a step of one replica.
    fn share(&self) -> usize {
        let replicas = self.strategy.num_replicas_in_sync();
        self.global_batch.div_ceil(replicas)
    }

    fn start_event(&self, continued: Option<u64>) -> String {
        let pipelines = self.strategy.input_context().num_input_pipelines;
        events::event(
            EventName::Start,
            [
                ("step", json!(continued.unwrap_or(0))),
                ("strategy", json!(self.strategy.name())),
                ("workers", json!(self.workers.unwrap_or(pipelines))),
                ("replicas", json!(self.strategy.num_replicas_in_sync())),
                ("devices", json!(self.devices)),
                ("model", json!(self.task.model_name())),
                ("parameters", json!(self.task.plan.parameters())),
                ("dataset", json!(self.task.dataset.to_string())),
                ("train_examples", json!(self.data.train.len())),
                ("test_examples", json!(self.data.test.len())),
                ("batch_size", json!(self.share())),
                ("global_batch_size", json!(self.global_batch)),
                ("epochs", json!(self.epochs)),
                ("inputs", self.task.inputs_json()),
                ("loss", json!(self.task.loss_text())),
                ("optimizer", json!(self.optimizer.name())),
                ("learning_rate", json!(self.optimizer.learning_rate())),
                ("seed", json!(self.args.training.seed)),
            ],
        )
    }

    /// The description of the run.
    fn headlines(&self) -> [String; 2] {
        let (global, strategy) = (self.global_batch, self.strategy.name());
        [
            format!(
                "{} ({} parameters) on {}: {} training and {} test examples",
                self.task.model_name(),
                self.task.plan.parameters(),
                self.task.dataset,
                self.data.train.len(),
                self.data.test.len()
            ),
            match self.workers {
                Some(workers) => format!(
                    "{strategy} strategy with {workers} workers: {global} examples a step of one \
                     worker"
                ),
                None => format!(
                    "{strategy} strategy on {}: {} examples each, {global} a step",
                    self.places(),
                    self.share(),
                ),
            },
        ]
    }

    /// How gradients of GPUs are reduced, and why.
    fn device_reduction(&self) -> Vec<String> {
        let told = self.strategy.device_reduction().into_iter();
        told.map(String::from).collect()
    }

    /// A note about CPU devices if there are not as many cores.
    fn beyond_the_cores(&self, cores: usize) -> Option<String> {
        // Devices of other workers are on unknown machines.
        let own = self.strategy.workers().is_none() && self.workers.is_none();
        let numbers: Vec<usize> = self
            .devices
            .iter()
            .filter(|_| own)
            .filter_map(|name| name.strip_prefix("cpu:")?.parse().ok())
            .collect();
        let replicas = numbers.len();
        if replicas > cores {
            let plural = if cores == 1 { "" } else { "s" };
            return Some(format!(
                "{replicas} replicas share {cores} core{plural}: that trains no faster than {cores}"
            ));
        }
        let beyond = numbers.into_iter().find(|number| *number >= cores)?;
        Some(format!(
            "cpu:{beyond} is a thread of its own, not the core of that number: it runs on \
             whichever of the {cores} cores is free"
        ))
    }

    /// `cpu:0, cpu:1`, `cpu:0 to cpu:63`, or the numbers of replicas and workers.
    fn places(&self) -> String {
        match self.strategy.workers() {
            None => listed(&self.devices),
            Some(workers) => format!(
                "{} replicas of {} workers",
                workers.num_replicas(),
                workers.num_workers()
            ),
        }
    }

    /// A note about a batch size larger than the dataset: as in TensorFlow, one short batch.
    fn short_batch(&self, global: usize) -> Option<String> {
        let examples = self.data.train.len();
        (global > examples).then(|| {
            format!(
                "all {examples} training examples are one short batch, so an epoch is one step; \
                 its loss is divided by {global}, use a smaller --batch-size for more steps"
            )
        })
    }
}

/// A list of names; only the first and the last if the list is long.
fn listed(devices: &[String]) -> String {
    const LENGTH_MAX: usize = 200;
    match devices {
        [first, .., last] if devices.join(", ").len() > LENGTH_MAX => format!("{first} to {last}"),
        all => all.join(", "),
    }
}
