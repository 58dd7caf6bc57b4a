//! Models with several inputs or outputs, and with outputs that are images or sequences.
//!
//! An example is one row of all inputs, one behind the other, and one row of all targets.

mod arrays;
mod columns;
mod decide;
mod named;
mod read;

use distribute_keras::{ModelSpec, Plan, PlannedOutput};
use serde_json::{Value, json};

pub(crate) use decide::{Asked, check_names, decided, restored};
pub(crate) use named::{Named, NamedData, NamedInput};

use crate::loss_name::LossName;
use crate::measured::{Measured, MeasuredOutput};
use crate::output_options::OutputOptions;
use crate::stored::stored_list;

/// What such a model is trained for.
#[derive(Debug, Clone, PartialEq)]
pub struct Several {
    pub(crate) inputs: Vec<NamedInput>,
    pub(crate) outputs: Vec<OutputTask>,
}

/// An output, and what is computed of it.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputTask {
    /// Its name, as Keras has it.
    pub name: String,
    /// The shape of one example of it.
    pub shape: Vec<usize>,
    pub(crate) measured: MeasuredOutput,
}

impl OutputTask {
    /// Whether its targets are class numbers, one at each place.
    #[must_use]
    pub fn is_class(&self) -> bool {
        self.measured.target.is_some_and(|place| place.is_class)
    }

    /// The numbers of one example of it.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The extent of its last axis: the classes of a softmax.
    #[must_use]
    pub fn features(&self) -> usize {
        self.measured.outputs
    }

    fn to_json(&self) -> Value {
        let texts = |metrics: &[distribute_data::KerasMetric]| -> Vec<String> {
            metrics.iter().map(ToString::to_string).collect()
        };
        let measured = &self.measured;
        json!({
            "name": self.name,
            "shape": self.shape,
            "width": measured.target.map(|place| place.width),
            "is_class": self.is_class(),
            "loss": measured.loss.name(),
            "loss_weight": measured.weight,
            "metrics": texts(&measured.metrics),
            "weighted_metrics": texts(&measured.weighted_metrics),
        })
    }

    /// In one line.
    fn line(&self) -> String {
        let targets = match (self.is_class(), self.measured.outputs) {
            (true, classes) => format!("{classes} classes by number"),
            (false, _) if self.elements() == 1 => "one value".to_string(),
            (false, _) => format!("{} values", self.elements()),
        };
        let at_each = match self.elements() / self.features().max(1) {
            places if places > 1 && self.is_class() => format!(" at each of {places} places"),
            _ => String::new(),
        };
        let measured = &self.measured;
        let weight = measured.weight.map(|weight| format!(" times {weight}"));
        let names = measured.metrics.iter().map(ToString::to_string);
        let weighted = measured.weighted_metrics.iter();
        let names = names.chain(weighted.map(|metric| format!("{metric} by weight")));
        let names: Vec<String> = names.collect();
        format!(
            "output {}: {targets}{at_each}; loss {}{}; metrics: {}",
            self.name,
            measured.loss.name(),
            weight.unwrap_or_default(),
            if names.is_empty() {
                "none".to_string()
            } else {
                names.join(", ")
            },
        )
    }
}

impl Several {
    /// The outputs, in the order of the model's.
    #[must_use]
    pub fn outputs(&self) -> &[OutputTask] {
        &self.outputs
    }

    /// What is computed of the outputs.
    pub(crate) fn measured(&self) -> Measured {
        let outputs = self.outputs.iter();
        Measured::of(outputs.map(|output| output.measured.clone()).collect())
    }

    /// The losses as one text, for the comparison of runs.
    pub(crate) fn loss_text(&self) -> String {
        let texts = self.outputs.iter().map(|output| {
            let measured = &output.measured;
            let weight = measured.weight.map(|weight| format!("*{weight}"));
            format!(
                "{}={}{}",
                output.name,
                measured.loss.name(),
                weight.unwrap_or_default()
            )
        });
        texts.collect::<Vec<_>>().join(";")
    }

    /// The metrics as one text, for the comparison of runs.
    pub(crate) fn metrics_text(&self) -> String {
        let texts = self.outputs.iter().map(|output| {
            let measured = &output.measured;
            let plain = measured.metrics.iter().map(ToString::to_string);
            let weighted = measured.weighted_metrics.iter();
            let weighted = weighted.map(|metric| format!("weighted {metric}"));
            let all: Vec<String> = plain.chain(weighted).collect();
            format!("{}={}", output.name, all.join(","))
        });
        texts.collect::<Vec<_>>().join(";")
    }

    /// One line for each input and output.
    pub(crate) fn lines(&self) -> Vec<String> {
        let inputs = self.inputs.iter().filter(|_| self.inputs.len() > 1);
        let inputs = inputs.map(NamedInput::line);
        inputs
            .chain(self.outputs.iter().map(OutputTask::line))
            .collect()
    }

    /// For a checkpoint.
    pub(crate) fn to_json(&self) -> Value {
        let inputs = self.inputs.iter().map(NamedInput::to_json);
        let outputs = self.outputs.iter().map(OutputTask::to_json);
        json!({
            "inputs": inputs.collect::<Vec<_>>(),
            "outputs": outputs.collect::<Vec<_>>(),
        })
    }

    /// The inputs with the shapes that the model declares.
    pub(crate) fn named_inputs(&self, spec: &ModelSpec) -> Vec<NamedInput> {
        let inputs = self.inputs.iter().zip(&spec.inputs);
        let inputs = inputs.map(|(input, declared)| NamedInput {
            declared: declared.shape.clone(),
            ..input.clone()
        });
        inputs.collect()
    }
}

/// The shapes of the inputs of a checkpoint's model with several.
pub(crate) fn stored_shapes(extra: &Value) -> Option<Vec<Vec<usize>>> {
    let inputs = NamedInput::stored(&extra["several"]["inputs"])?.into_iter();
    Some(inputs.map(|input| input.shape).collect())
}

/// What a run that goes on was trained for, where the options do not say it.
///
/// `asked` is what they say of outputs, `has_loss` and `has_metrics` whether they say one loss and
/// metrics for all.
pub(crate) fn stored_options(
    outputs: &Value,
    mut asked: OutputOptions,
    has_loss: bool,
    has_metrics: bool,
) -> OutputOptions {
    let is_given =
        |name: &str, given: &[(String, LossName)]| given.iter().any(|(output, _)| output == name);
    let losses_given = asked.losses.clone();
    let weights_given = !asked.loss_weights.is_empty();
    let metrics_given = !asked.metrics.is_empty() || has_metrics;
    let weighted_given = !asked.weighted_metrics.is_empty();
    for output in outputs.as_array().into_iter().flatten() {
        let name = output["name"].as_str().unwrap_or_default();
        let loss = output["loss"].as_str().and_then(|loss| loss.parse().ok());
        if !has_loss && !is_given(name, &losses_given) {
            asked
                .losses
                .extend(loss.map(|loss| (name.to_string(), loss)));
        }
        // One that is not kept is 1.
        if !weights_given {
            let weight = output["loss_weight"].as_f64().unwrap_or(1.0);
            asked.loss_weights.push((name.to_string(), weight));
        }
        let metrics = |key: &str| stored_list(&output[key]).unwrap_or_default().into_iter();
        if !metrics_given {
            let all = metrics("metrics").map(|metric| (name.to_string(), metric));
            asked.metrics.extend(all);
        }
        if !weighted_given {
            let all = metrics("weighted_metrics");
            let all = all.map(|metric| (Some(name.to_string()), metric));
            asked.weighted_metrics.extend(all);
        }
    }
    asked
}

/// Whether a model needs more than one row of numbers for one label.
pub(crate) fn is_needed(plan: &Plan) -> bool {
    let is_flat = |output: &PlannedOutput| matches!(output.shape, distribute_keras::Shape::Flat(_));
    plan.inputs.len() > 1 || plan.outputs.len() > 1 || !plan.outputs.iter().all(is_flat)
}
