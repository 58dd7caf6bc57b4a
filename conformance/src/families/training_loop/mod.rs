//! `training_loop.json`: optimizers that are given each replica's gradients, with clipping,
//! accumulation, averages, decay of weights and a loss scale.

mod loss_scale;

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::checkpoint::Section;
use distribute_core::optim::{Optimizer, from_config};
use distribute_core::{
    Clip, DefaultStrategy, LossScale, Mirrored, PerReplica, Replicated, Strategy, StrategyExt,
    TrainState,
};
use serde_json::{Value, json};

use super::support::{Variables, expected};
use crate::case::Case;
use crate::compare::{Tolerance, equal};
use crate::env::Env;
use crate::json::Fields;
use crate::outcome::{Checked, Deviation, Failure, Outcome, Rule};
use crate::tensors::{as_scalar, rank, reshaped, tensor};

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "loss_scale" => loss_scale::check(case, env),
        "optimizer" | "clip" | "accumulate" | "ema" | "weight_decay" => train(case, env),
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

/// Keras' names of slots, and ours. `u_product` of Nadam follows from the number of the update.
const SLOTS: [(&str, &str); 13] = [
    ("momentums", "momentum"),
    ("velocities", "velocity"),
    ("velocity_hats", "velocity_hat"),
    ("average_gradients", "average_gradient"),
    ("accumulators", "accumulator"),
    ("accumulated_grads", "accumulated_gradient"),
    ("accumulated_delta_vars", "accumulated_delta"),
    ("m", "momentum"),
    ("u", "norm"),
    ("linears", "linear"),
    ("model_variables_moving_average", "average"),
    ("accumulated_gradients", ""),
    ("u_product", ""),
];

/// The tensors of a state by name.
type Tensors = BTreeMap<String, TensorData>;

/// The gradients of one replica in one step, their elements in the order of the variables.
type ReplicaGradients = Vec<Option<TensorData>>;

/// What an optimizer of Keras was built with, in our words.
struct Setup {
    optimizer: Arc<dyn Optimizer>,
    clip: Option<Clip>,
    micro_batches: usize,
    loss_scale: LossScale,
}

/// Keras' arguments that are options of the training state here.
const OF_THE_STATE: [&str; 6] = [
    "name",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "gradient_accumulation_steps",
    "exclude",
];

impl Setup {
    fn of(config: &Value) -> Result<Self, Failure> {
        let name = config.text("name")?.to_lowercase();
        let mut own = config.clone();
        if let Some(own) = own.as_object_mut() {
            own.retain(|key, _| !OF_THE_STATE.contains(&key.as_str()));
            if let Some(excluded) = config.get("exclude") {
                own.insert("exclude_from_weight_decay".to_string(), excluded.clone());
            }
        }
        let clip = |key: &str, clip: fn(f64) -> Clip| Some(clip(config[key].as_f64()?));
        let steps = config["gradient_accumulation_steps"].as_u64().unwrap_or(1);
        Ok(Self {
            optimizer: from_config(&name, &own)?,
            clip: clip("clipnorm", Clip::Norm)
                .or_else(|| clip("global_clipnorm", Clip::GlobalNorm))
                .or_else(|| clip("clipvalue", Clip::Value)),
            micro_batches: usize::try_from(steps).map_err(Failure::schema)?,
            loss_scale: LossScale::default(),
        })
    }

    /// Whether two kinds of clipping are asked for, of which a state takes one.
    fn clips_twice(config: &Value) -> bool {
        let kinds = ["clipnorm", "global_clipnorm", "clipvalue"];
        kinds
            .iter()
            .filter(|kind| config.get(**kind).is_some())
            .count()
            > 1
    }
}

/// A run with one optimizer.
struct Run<'a> {
    strategy: &'a dyn Strategy,
    names: Vec<String>,
    state: Mirrored<TrainState<Variables>>,
    tolerance: Tolerance,
}

impl<'a> Run<'a> {
    fn new(
        strategy: &'a dyn Strategy,
        setup: &Setup,
        variables: &Value,
        tolerance: Tolerance,
    ) -> Result<Self, Failure> {
        let state = strategy.try_scope(|device| {
            let model = Variables::new(variables, device)?;
            let state = TrainState::with_optimizer(model, Arc::clone(&setup.optimizer));
            let state = match setup.clip {
                Some(clip) => state.clip(clip),
                None => state,
            };
            let state = state.with_loss_scale(setup.loss_scale.clone());
            Ok(state.accumulate_mean(setup.micro_batches))
        })?;
        Ok(Self {
            strategy,
            names: state.primary()?.parameter_names().to_vec(),
            state,
            tolerance,
        })
    }

    /// Applies each replica's gradients of the scaled loss.
    fn step(&mut self, gradients: Vec<ReplicaGradients>) -> Result<(), Failure> {
        let device = Device::flex();
        let given = |gradient: TensorData| Tensor::<1>::from_data(gradient, &device);
        let of_replica = |replica: ReplicaGradients| -> Vec<_> {
            replica
                .into_iter()
                .map(|gradient| gradient.map(given))
                .collect()
        };
        let gradients = PerReplica::new(gradients.into_iter().map(of_replica).collect());
        let scale = self.state.host_metadata().loss_scale().scale() as f32;
        // In two numbers: a program may multiply by inverses, of which that of a large scale is 0.
        let part = scale.min(f32::powi(2.0, 64));
        let [first, second] =
            [part, scale / part].map(|part| Replicated(Tensor::<1>::from_data([part], &device)));
        let given = (&mut self.state, gradients, first, second);
        self.strategy
            .run(given, |ctx, (state, gradients, first, second)| {
                let loss = state.model.loss_of(gradients, ctx.device());
                // Powers of two: what is given arrives with the same bits.
                let device = ctx.device();
                let loss = loss / first.to_device(device) / second.to_device(device);
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
                state.apply_gradients(ctx, gradients).map(drop)
            })?;
        Ok(())
    }

    /// The tensors of every replica, and the number of updates.
    fn found(&self) -> Result<(Vec<Tensors>, u64), Failure> {
        let states = self.state.values()?;
        let tensors = states.iter().map(TrainState::to_tensors);
        Ok((
            tensors.collect::<Result<_, _>>()?,
            self.state.primary()?.step(),
        ))
    }

    /// Compares with what the file says about a step; Keras also counts the updates that were
    /// `skipped`.
    fn compare(&self, wanted: &Value, skipped: u64) -> Result<(), Failure> {
        let (replicas, step) = self.found()?;
        equal(wanted.field("iterations")?, &json!(step + skipped))?;
        for (replica, tensors) in replicas.iter().enumerate() {
            self.same_variables(wanted.field("variables")?, replica, tensors)?;
            for (slot, of_variables) in wanted["slots"].as_object().into_iter().flatten() {
                let (_, own) = SLOTS
                    .iter()
                    .find(|(known, _)| known == slot)
                    .ok_or_else(|| Failure::schema(format!("unknown slot `{slot}`")))?;
                for name in self.names.iter().filter(|_| !own.is_empty()) {
                    let wanted = &of_variables[name][replica];
                    let key = format!("optimizer/{own}/{name}");
                    let variable = &tensors[&format!("model/{name}")];
                    // A training state keeps the elements of its slots in one dimension.
                    let found = match tensors.get(&key) {
                        Some(slot) if slot.num_elements() == variable.num_elements() => {
                            reshaped(slot, variable.shape())
                        }
                        Some(slot) => slot.clone(),
                        None => self.slot_start(own, variable),
                    };
                    self.same(wanted, Some(&found), &format!("{slot} of {name}"))?;
                }
            }
        }
        match wanted["slots"].get("accumulated_gradients") {
            Some(wanted) => self.compare_waiting(wanted),
            None => Ok(()),
        }
    }

    /// Whether every replica has the variables and slots of one replica, after as many updates.
    fn equals(&self, alone: &Run<'_>) -> Result<(), Failure> {
        let ((found, step), (wanted, wanted_step)) = (self.found()?, alone.found()?);
        equal(&json!(wanted_step), &json!(step))?;
        for tensors in &found {
            let names = tensors.keys();
            let names: Vec<_> = names.filter(|it| !it.starts_with("loss_scale/")).collect();
            equal(&json!(wanted[0].keys().collect::<Vec<_>>()), &json!(names))?;
            for (name, wanted) in &wanted[0] {
                let same = self.tolerance.same_data(wanted, &tensors[name]);
                same.map_err(|failure| failure.at(name))?;
            }
        }
        Ok(())
    }

    /// What a slot is before the first update of its variable.
    fn slot_start(&self, slot: &str, value: &TensorData) -> TensorData {
        let start = self.state.host_metadata().optimizer().slot_start(slot);
        let flat = Tensor::from_data(flat(value), &Device::flex());
        reshaped(&start.of(&flat).into_data(), value.shape())
    }

    /// Compares the sums of micro-batches that wait; after an update none do.
    fn compare_waiting(&self, wanted: &Value) -> Result<(), Failure> {
        let ids: Vec<usize> = (0..self.state.values()?.len()).collect();
        let own = self.state.own_tensors(&ids)?;
        let is_waiting = self.state.host_metadata().is_accumulating();
        for name in &self.names {
            for (replica, wanted) in wanted.list(name)?.iter().enumerate() {
                let data = tensor(wanted)?;
                let zeros = TensorData::full_dtype(data.shape().clone(), 0.0, data.dtype());
                let stored = Section::Accumulated.name_in(replica, name);
                let sum = match own.get(replica).and_then(|own| own.get(&stored)) {
                    None if is_waiting => return Err(Failure::got("no gradient")),
                    sum => sum.unwrap_or(&zeros),
                };
                let at = format!("accumulated gradient of {name}");
                self.same(wanted, Some(sum), &at)?;
            }
        }
        Ok(())
    }

    /// Compares one replica's variables.
    fn same_variables(
        &self,
        wanted: &Value,
        replica: usize,
        tensors: &Tensors,
    ) -> Result<(), Failure> {
        let known = wanted.as_object().map_or(0, |names| names.len());
        equal(&json!(known), &json!(self.names.len())).map_err(|it| it.at("variables"))?;
        for name in &self.names {
            let found = tensors.get(&format!("model/{name}"));
            self.same(&wanted.field(name)?[replica], found, name)?;
        }
        Ok(())
    }

    fn same(&self, wanted: &Value, found: Option<&TensorData>, at: &str) -> Result<(), Failure> {
        let found = found.ok_or_else(|| Failure::got("nothing").at(at))?;
        let same = match rank(wanted) {
            0 => self.tolerance.same(wanted, &as_scalar(found.clone())),
            _ => self.tolerance.same(wanted, found),
        };
        same.map_err(|failure| failure.at(at))
    }
}

/// The elements of a tensor, in one dimension.
fn flat(data: &TensorData) -> TensorData {
    reshaped(data, &[data.num_elements()])
}

/// The gradients of a case by step and replica.
fn gradients(case: &Case) -> Result<Vec<Vec<ReplicaGradients>>, Failure> {
    let variables = case.inputs.field("variables")?.as_object();
    let variables = variables.ok_or_else(|| Failure::schema("`variables` has no names"))?;
    let shapes = variables
        .iter()
        .map(|(name, value)| Ok((name, tensor(value)?)));
    let shapes = shapes.collect::<Result<Vec<_>, Failure>>()?;
    let of_variable = |replica: &Value, (name, variable): &(&String, TensorData)| {
        let gradient = match &replica[*name] {
            Value::Null => return Ok(None),
            value => tensor(value)?,
        };
        equal(
            &json!(variable.shape().to_vec()),
            &json!(gradient.shape().to_vec()),
        )
        .map_err(|it| it.at(format!("the shape of a gradient of {name}: ")))?;
        Ok(Some(flat(&gradient)))
    };
    let of_replica = |replica: &Value| -> Result<ReplicaGradients, Failure> {
        shapes
            .iter()
            .map(|variable| of_variable(replica, variable))
            .collect()
    };
    let steps = case.inputs.list("gradients")?.iter();
    let steps = steps.map(|step| {
        let replicas = step
            .as_array()
            .ok_or_else(|| Failure::schema("gradients"))?;
        equal(&json!(case.strategy.replicas), &json!(replicas.len()))
            .map_err(|it| it.at("replicas of `gradients`: "))?;
        replicas.iter().map(of_replica).collect()
    });
    steps.collect()
}

fn train(case: &Case, env: &Env<'_>) -> Checked {
    let config = case.inputs.field("optimizer")?;
    if Setup::clips_twice(config) {
        return Ok(Outcome::NotApplicable(Rule::CompileError));
    }
    let setup = match (Setup::of(config), case.error_class()) {
        // Not one of a name or a number that is unknown.
        (Err(error), Some("ValueError")) if !error.got.contains("unknown") => {
            return Ok(Outcome::Passed);
        }
        (setup, _) => setup?,
    };
    let steps = gradients(case)?;
    let strategy = &*env.strategy(case)?;
    let variables = case.inputs.field("variables")?;
    let mut run = Run::new(strategy, &setup, variables, env.tolerance())?;
    let deviation = deviation(case, &setup, &steps)?;
    let Some(deviation) = deviation else {
        let wanted = expected(case)?.list("steps")?;
        equal(&json!(wanted.len()), &json!(steps.len()))?;
        for (index, (gradients, wanted)) in steps.into_iter().zip(wanted).enumerate() {
            run.step(gradients)?;
            let compared = run.compare(wanted, 0);
            compared.map_err(|failure| failure.at(format!("step {index}: ")))?;
        }
        return run.finalize(case);
    };
    follow(&mut run, &setup, variables, steps)?;
    Ok(Outcome::Deviation(deviation))
}

/// Where this library does something else with a case of this setup.
fn deviation(
    case: &Case,
    setup: &Setup,
    steps: &[Vec<ReplicaGradients>],
) -> Result<Option<Deviation>, Failure> {
    let replicas = case.strategy.replicas;
    let is_given = steps.iter().flatten().flatten().any(Option::is_some);
    let error = case.error_class();
    let is_keras_3 = case.inputs.text("library")? == "keras3";
    let accumulates = setup.micro_batches > 1;
    let averages = setup.optimizer.slots().contains(&"average");
    Ok(match () {
        () if error == Some("ValueError") && !is_given => Some(Deviation::NoGradients),
        () if error == Some("ValueError") => Some(Deviation::OneMicroBatch),
        () if error.is_some() => Some(Deviation::TracedUpdate),
        () if accumulates && averages => Some(Deviation::UpdateAverage),
        () if setup.clip.is_some() && is_keras_3 && replicas > 1 => Some(Deviation::ClipsSum),
        () => None,
    })
}

/// What a run that deviates must be equal to: one replica that is given the sum over the replicas
/// and the mean over the micro-batches. What one replica does with them is compared with Keras in
/// the other cases.
fn follow(
    run: &mut Run<'_>,
    setup: &Setup,
    variables: &Value,
    steps: Vec<Vec<ReplicaGradients>>,
) -> Result<(), Failure> {
    let alone = DefaultStrategy::new();
    let single = Setup {
        optimizer: Arc::clone(&setup.optimizer),
        clip: setup.clip,
        micro_batches: 1,
        loss_scale: LossScale::default(),
    };
    let mut alone = Run::new(&alone, &single, variables, run.tolerance)?;
    for micro_batches in steps.chunks_exact(setup.micro_batches.max(1)) {
        for gradients in micro_batches {
            run.step(gradients.clone())?;
        }
        alone.step(vec![sum(micro_batches, setup.micro_batches)])?;
        run.equals(&alone)?;
    }
    Ok(())
}

/// The sum over replicas and micro-batches, divided by the number of micro-batches.
fn sum(micro_batches: &[Vec<ReplicaGradients>], count: usize) -> ReplicaGradients {
    let given: Vec<&ReplicaGradients> = micro_batches.iter().flatten().collect();
    let sum = |index: usize| {
        let gradients = given.iter().filter_map(|it| it.get(index)?.clone());
        let gradients = gradients.map(|it| Tensor::<1>::from_data(it, &Device::flex()));
        let sum = gradients.reduce(|sum, gradient| sum + gradient)?;
        Some(sum.div_scalar(count as f64).into_data())
    };
    (0..given.first().map_or(0, |it| it.len()))
        .map(sum)
        .collect()
}

impl Run<'_> {
    /// Compares with the variables that averages have replaced, where the file has them.
    fn finalize(mut self, case: &Case) -> Checked {
        let Some(wanted) = expected(case)?.get("finalized") else {
            return Ok(Outcome::Passed);
        };
        self.state.update(TrainState::apply_averages)?;
        let (replicas, _) = self.found()?;
        for (replica, tensors) in replicas.iter().enumerate() {
            let same = self.same_variables(wanted, replica, tensors);
            same.map_err(|failure| failure.at("finalized "))?;
        }
        Ok(Outcome::Passed)
    }
}
