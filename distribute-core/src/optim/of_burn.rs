//! burn's optimizers in our training state: [`BurnOptimizer`].
//!
//! The arithmetic is burn's. They keep a record of their own for every parameter, with the
//! number of its updates in it, which is why they cannot be captured for a TPU. A record is
//! its leaves by name (burn: `RecordState`), which our checkpoints hold beside the slots of
//! our own optimizers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::grad_clipping::GradientClipping;
use burn::module::{ParamGroup, ParamId};
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, AdjustLrFn, DynOptimizer,
    DynState, LambConfig, LionConfig, ModuleOptimizer, MuonConfig, Optimizer as BurnRule,
    OptimizerRecord, RmsPropConfig, SgdConfig, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::{Map, Value, json};

use super::{Coefficient, Optimizer, ParameterUpdate, Updated, WholeParameter};
use crate::macros::setters;
use crate::sync::lock;
use crate::{Error, Result};

/// What an optimizer of burn keeps for one parameter.
#[derive(Clone)]
pub struct BurnRecord(DynState);

impl fmt::Debug for BurnRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BurnRecord").finish_non_exhaustive()
    }
}

/// Behind the names of numbers that are not whole ones: their bits are.
const FLAG: &str = ":bool";
const FLOAT: &str = ":f64";

/// The leaves of a record, by name: tensors, and numbers as `i64`.
pub(crate) type RecordLeaves = BTreeMap<String, TensorData>;

/// An optimizer of burn, whatever the dimensions of a parameter.
trait AnyRank: DynOptimizer {
    /// The updated parameter, flattened as it and its gradient are.
    fn step(&self, rate: f64, of: [Tensor<1>; 2], whole: WholeParameter<'_>) -> Result<Tensor<1>>;
}

/// Runs `$body` with the constant `$D` as `$rank`.
macro_rules! with_rank {
    ($rank:expr, $D:ident => $body:expr) => {
        with_rank!(@ $rank, $D => $body, 1 2 3 4 5 6 7 8)
    };
    (@ $rank:expr, $D:ident => $body:expr, $($number:literal)*) => {
        match $rank {
            $($number => {
                const $D: usize = $number;
                $body
            })*
            other => Err(Error::invalid(format!(
                "a parameter with {other} dimensions: burn's optimizers take 1 to 8"
            ))),
        }
    };
}

/// A rule of burn, and how the gradients are clipped that it gets.
#[derive(Clone)]
pub struct BurnParts {
    name: &'static str,
    rule: Arc<dyn AnyRank>,
    clipping: Option<GradientClipping>,
}

/// A configuration of one of burn's optimizers (`AdamWConfig::new()` and others) with all that it
/// says, clipping too; or a rule of your own, an [`OwnRule`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no configuration of an optimizer of burn",
    label = "not a configuration such as `AdamConfig::new()`",
    note = "pass the configuration itself, without `build()` or `init()`: \
            `BurnOptimizer::new(AdamConfig::new(), 1e-3)`",
    note = "a rule of your own is an `OwnRule(\"name\", rule)`"
)]
pub trait BurnConfig {
    /// What a [`BurnOptimizer`] takes of it.
    fn parts(&self) -> BurnParts;
}

/// A rule that implements burn's trait `Optimizer`, and the name that checkpoints know it by, which
/// must not be one of [this crate's](super::from_config).
#[derive(Debug, Clone)]
pub struct OwnRule<O>(pub &'static str, pub O);

impl<O: BurnRule + Clone> BurnConfig for OwnRule<O> {
    fn parts(&self) -> BurnParts {
        BurnParts {
            name: self.0,
            rule: Arc::new(self.1.clone()),
            clipping: None,
        }
    }
}

impl<O: BurnRule> AnyRank for O {
    fn step(&self, rate: f64, of: [Tensor<1>; 2], whole: WholeParameter<'_>) -> Result<Tensor<1>> {
        let count: usize = whole.shape.iter().product();
        let device = of[0].device();
        with_rank!(whole.shape.len(), D => {
            let mut shape = [0; D];
            shape.copy_from_slice(whole.shape);
            let record = whole.record.take().map(|record| record.0.downcast::<O::State<D>>());
            let record = record.map(|record| O::to_device::<D>(record, &device));
            let [parameter, gradient] = of.map(|tensor| tensor.reshape(shape));
            let (parameter, record) = BurnRule::step::<D>(self, rate, parameter, gradient, record);
            *whole.record = record.map(|record| BurnRecord(DynState::create(record, D)));
            Ok(parameter.reshape([count]))
        })
    }
}

/// Keeps what burn reads of a record for one parameter.
struct Reader {
    rule: Arc<dyn AnyRank>,
    state: Arc<Mutex<Option<DynState>>>,
}

impl DynOptimizer for Reader {
    fn step_dyn(
        &self,
        rank: usize,
        rate: f64,
        parameter: BridgeTensor,
        gradient: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        self.rule.step_dyn(rank, rate, parameter, gradient, state)
    }

    fn to_device_dyn(&self, state: DynState, device: &Device) -> DynState {
        self.rule.to_device_dyn(state, device)
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        self.rule.state_flatten(prefix, state, out);
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<DynState> {
        let state = self.rule.state_unflatten(rank, prefix, source, device);
        lock(&self.state).clone_from(&state);
        state
    }
}

/// One of burn's optimizers, with burn's arithmetic and defaults, for a
/// [`TrainState`](crate::TrainState): made of burn's configuration.
///
/// Clipping of the configuration (`with_grad_clipping`) is burn's: of each parameter's gradient,
/// here after it was summed over the replicas. Clipping of the state, accumulation, schedules,
/// [`WeightDecay`](super::WeightDecay), [`MovingAverage`](super::MovingAverage) and checkpoints
/// work as with the optimizers of this crate. Not on parameter servers, which cut parameters up,
/// and not in compiled steps, whose program would have the number of updates built in.
///
/// burn's L-BFGS is none of them: it computes the loss several times in one update.
///
/// ```
/// use burn::grad_clipping::GradientClippingConfig;
/// use burn::nn::LinearConfig;
/// use burn::optim::AdamConfig;
/// use distribute_core::{BurnOptimizer, MirroredStrategy, StrategyExt, Tensor, TrainState};
///
/// let adam = AdamConfig::new().with_beta_1(0.8);
/// let adam = adam.with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)));
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let mut state = strategy.scope(|device| {
///     TrainState::new(LinearConfig::new(3, 1).init(device), BurnOptimizer::new(adam, 1e-2))
/// })?;
/// strategy.run(&mut state, |ctx, state| {
///     let outputs = state.model.forward(Tensor::<2>::ones([4, 3], ctx.device()));
///     let loss = ctx.mean_loss_of(outputs.mean(), 4.0)?;
///     state.minimize(ctx, &loss)
/// })?;
/// let tensors = state.primary()?.to_tensors()?;
/// assert!(tensors.contains_key("optimizer_record/momentum.moment_1/weight"));
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct BurnOptimizer {
    name: &'static str,
    /// The first one is for all parameters; of several for one parameter the last one counts.
    rules: Vec<(Members, BurnParts)>,
    rates: Vec<(ParamGroup, f64)>,
    learning_rate: f64,
    config: Map<String, Value>,
}

/// Which parameters a rule is for.
#[derive(Clone)]
enum Members {
    All,
    Matrices,
    Group(ParamGroup),
}

/// A parameter, as the groups tell it from others.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) path: &'a str,
    pub(crate) shape: &'a [usize],
}

/// Whether a parameter belongs to a group, by its path.
fn is_in(group: &ParamGroup, path: &str) -> bool {
    // No parameter has it: ids are of one run, and groups are for all.
    group.matches(&ParamId::from(u64::MAX), Some(path))
}

impl Members {
    fn has(&self, of: Of<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Matrices => of.shape.len() == 2,
            Self::Group(group) => is_in(group, of.path),
        }
    }
}

impl BurnOptimizer {
    /// The optimizer of a configuration. Checkpoints know it by burn's name with `burn:` before it
    /// (`burn:adam`).
    pub fn new(config: impl BurnConfig, learning_rate: f64) -> Self {
        let parts = config.parts();
        Self {
            name: parts.name,
            rules: vec![(Members::All, parts)],
            rates: Vec::new(),
            learning_rate,
            config: Map::new(),
        }
    }

    /// Another optimizer for parameters with two dimensions: for Muon, which takes no others.
    pub fn matrices(mut self, config: impl BurnConfig) -> Self {
        self.rules.push((Members::Matrices, config.parts()));
        self
    }

    /// Another optimizer for a group of parameters, as burn's `ModuleOptimizer::with_group`. A
    /// parameter of several groups has the optimizer that was added last.
    ///
    /// The group is one of paths (`from_predicate`, `from_path`, `from_regex`); a group of ids, or
    /// any other that has no parameter of the model, is an error of the first update.
    pub fn group(mut self, group: ParamGroup, config: impl BurnConfig) -> Self {
        self.rules.push((Members::Group(group), config.parts()));
        self
    }

    /// The learning rate of a group of parameters is `factor` times the state's, whoever sets it:
    /// burn's `ModuleLearningRate` with rates that change together. The group is as in
    /// [`group`](Self::group).
    pub fn rate_factor(mut self, group: ParamGroup, factor: f64) -> Self {
        self.rates.push((group, factor));
        self
    }

    setters! { self;
        /// Hyper-parameters for checkpoints, beside the learning rate.
        described(config: Map<String, Value>) => config = config;

        /// What checkpoints know it by, in place of burn's name: for two optimizers of a program
        /// whose checkpoints must not be mixed up.
        named(name: &'static str) => name = name;
    }

    fn rule(&self, of: Of<'_>) -> Result<&BurnParts> {
        let mut rules = self.rules.iter().rev();
        let found = rules.find(|(members, _)| members.has(of));
        let (_, parts) = found.ok_or_else(|| Error::internal("an optimizer without a rule"))?;
        Ok(parts)
    }

    fn rate(&self, path: &str, rate: f64) -> f64 {
        let mut rates = self.rates.iter().rev();
        let factor = rates.find(|(group, _)| is_in(group, path));
        factor.map_or(rate, |(_, factor)| rate * factor)
    }

    /// What an optimizer of burn has kept for these parameters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a record that has none of them, or one of another shape.
    pub(crate) fn of_record(
        &self,
        paths: &[String],
        shapes: &[Vec<usize>],
        record: OptimizerRecord,
    ) -> Result<Vec<Option<BurnRecord>>> {
        // Only burn's own optimizer reads the parts of a record, group by group: each parameter is
        // a group here.
        let mut reader = ModuleOptimizer::from(SgdConfig::new().build());
        let mut caught = Vec::with_capacity(paths.len());
        for (path, shape) in paths.iter().zip(shapes) {
            let state = Arc::new(Mutex::new(None));
            caught.push(Arc::clone(&state));
            let rule = Arc::clone(&self.rule(Of { path, shape })?.rule);
            let reads = Reader { rule, state };
            reader = reader.with_group(ParamGroup::from_path(path), reads, None);
        }
        drop(reader.load_record(record));
        let mut records = Vec::with_capacity(paths.len());
        for (index, state) in caught.iter().enumerate() {
            let found = lock(state).take();
            let (path, rank) = (&paths[index], shapes[index].len());
            if let Some(other) = found.as_ref().filter(|found| found.rank() != rank) {
                return Err(Error::invalid(format!(
                    "the record of the optimizer is of another model: `{path}` has {} dimensions \
                     there, and {rank} here",
                    other.rank()
                )));
            }
            records.push(found.map(BurnRecord));
        }
        if records.iter().all(Option::is_none) {
            return Err(Error::invalid(format!(
                "the record has nothing that the optimizer {} keeps for the parameters ({}): it is \
                 of another optimizer or model",
                self.name,
                paths.join(", ")
            )));
        }
        Ok(records)
    }

    /// The leaves of the record of a parameter.
    pub(crate) fn save(&self, of: Of<'_>, record: &BurnRecord) -> Result<RecordLeaves> {
        let mut sink = StateSink::default();
        let rule = &self.rule(of)?.rule;
        rule.state_flatten("", &record.0, &mut sink);
        let mut leaves: RecordLeaves = sink.tensors.into_iter().collect();
        for (name, number) in sink.scalars {
            let whole = u64::try_from(number)
                .ok()
                .and_then(|it| i64::try_from(it).ok())
                .or_else(|| i64::try_from(number).ok());
            let (name, bits) = match (whole, bool::try_from(number), f64::try_from(number)) {
                (Some(whole), ..) => (name, whole),
                (_, Ok(flag), _) => (name + FLAG, i64::from(flag)),
                (.., Ok(number)) => (name + FLOAT, number.to_bits().cast_signed()),
                _ => continue,
            };
            leaves.insert(name, TensorData::from([bits]));
        }
        Ok(leaves)
    }

    /// The record of a parameter; `None` if it is not whole.
    pub(crate) fn load(
        &self,
        of: Of<'_>,
        leaves: RecordLeaves,
        device: &Device,
    ) -> Result<Option<BurnRecord>> {
        let mut numbers = BTreeMap::new();
        let mut tensors = Vec::new();
        for (name, data) in leaves {
            let Ok(&[bits]) = data.as_slice::<i64>() else {
                tensors.push((name, data));
                continue;
            };
            if let Some(name) = name.strip_suffix(FLAG) {
                numbers.insert(name.to_string(), (bits != 0).into());
            } else if let Some(name) = name.strip_suffix(FLOAT) {
                let number = f64::from_bits(bits.cast_unsigned());
                numbers.insert(name.to_string(), number.into());
            } else {
                numbers.insert(name, bits.into());
            }
        }
        let mut source = StateSource::new(numbers);
        for (name, data) in tensors {
            source.insert_tensor(name, data);
        }
        let rule = &self.rule(of)?.rule;
        with_rank!(of.shape.len(), D => {
            let record = rule.state_unflatten(D, "", &mut source, device);
            Ok(record.map(BurnRecord))
        })
    }
}

impl fmt::Debug for BurnOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BurnOptimizer")
            .field("name", &self.name)
            .field("learning_rate", &self.learning_rate)
            .finish_non_exhaustive()
    }
}

impl Optimizer for BurnOptimizer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn slots(&self) -> &[&'static str] {
        &[]
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn config(&self) -> Value {
        let mut config = self.config.clone();
        config.insert("learning_rate".to_string(), json!(self.learning_rate));
        Value::Object(config)
    }

    fn check_parameters(&self, paths: &[String]) -> Result<()> {
        let of_rules = self.rules.iter().filter_map(|(members, _)| match members {
            Members::Group(group) => Some(group),
            Members::All | Members::Matrices => None,
        });
        for group in of_rules.chain(self.rates.iter().map(|(group, _)| group)) {
            if !paths.iter().any(|path| is_in(group, path)) {
                return Err(Error::invalid(format!(
                    "a parameter group of the optimizer {} has none of the parameters of the \
                     model ({}): give it by paths, as `ParamGroup::from_predicate(\"..\")`, not by \
                     ids ({group:?})",
                    self.name,
                    paths.join(", ")
                )));
            }
        }
        Ok(())
    }

    fn burn(&self) -> Option<&BurnOptimizer> {
        Some(self)
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let &[Coefficient::Host(learning_rate)] = of.coefficients else {
            let instead = "use an optimizer of this crate";
            return Err(Error::not_compilable("an optimizer of burn", instead));
        };
        let Some(whole) = of.whole else {
            return Err(Error::invalid(format!(
                "the optimizer {} updates whole parameters, not parts of them",
                self.name
            )));
        };
        let (path, shape) = (of.path, whole.shape);
        let parts = self.rule(Of { path, shape })?;
        let gradient = match &parts.clipping {
            Some(clipping) => clipping.clip_gradient(of.gradient),
            None => of.gradient,
        };
        let rate = self.rate(path, learning_rate);
        let parameter = parts.rule.step(rate, [of.parameter, gradient], whole)?;
        Ok((parameter, of.slots))
    }
}

pub(super) type Build = fn(f64) -> BurnOptimizer;

/// The configurations of burn, by the name that checkpoints know them by.
macro_rules! configurations {
    ($($name:literal: $config:ident,)*) => {$(
        impl BurnConfig for $config {
            fn parts(&self) -> BurnParts {
                BurnParts {
                    name: $name,
                    rule: Arc::new(self.build()),
                    // Only the optimizer that burn makes of it says how it clips.
                    clipping: self.init().grad_clipping().cloned(),
                }
            }
        }
    )*};
}

configurations! {
    "burn:adafactor": AdafactorConfig,
    "burn:adagrad": AdaGradConfig,
    "burn:adam": AdamConfig,
    "burn:adamw": AdamWConfig,
    "burn:adan": AdanConfig,
    "burn:lamb": LambConfig,
    "burn:lion": LionConfig,
    "burn:muon": MuonConfig,
    "burn:rmsprop": RmsPropConfig,
    "burn:sgd": SgdConfig,
}

impl<C: BurnConfig> BurnConfig for &C {
    fn parts(&self) -> BurnParts {
        (*self).parts()
    }
}

/// The optimizer of a configuration of burn with its defaults.
macro_rules! default_of {
    ($config:ident) => {
        |rate| BurnOptimizer::new($config::new(), rate)
    };
}

/// burn's optimizers with burn's defaults.
pub(super) const ALL: [(&str, Build); 10] = [
    ("burn:adafactor", default_of!(AdafactorConfig)),
    ("burn:adagrad", default_of!(AdaGradConfig)),
    ("burn:adam", default_of!(AdamConfig)),
    ("burn:adamw", default_of!(AdamWConfig)),
    ("burn:adan", default_of!(AdanConfig)),
    ("burn:lamb", default_of!(LambConfig)),
    ("burn:lion", default_of!(LionConfig)),
    ("burn:muon", muon),
    ("burn:rmsprop", default_of!(RmsPropConfig)),
    ("burn:sgd", default_of!(SgdConfig)),
];

/// Muon for matrices, with steps as large as AdamW's, which all else is left to.
fn muon(rate: f64) -> BurnOptimizer {
    let muon = MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
    BurnOptimizer::new(AdamWConfig::new(), rate)
        .matrices(muon)
        .named("burn:muon")
}
