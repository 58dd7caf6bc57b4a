//! burn's optimizers in our training state: [`BurnOptimizer`].
//!
//! The arithmetic is burn's. They keep a record of their own for every parameter, with the
//! number of its updates in it, which is why they cannot be captured for a TPU. A record is
//! its leaves by name (burn: `RecordState`), which our checkpoints hold beside the slots of
//! our own optimizers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, AdjustLrFn, DynState,
    LambConfig, LionConfig, MuonConfig, Optimizer as BurnRule, RecordState, RmsPropConfig,
    SgdConfig, StateSink, StateSource,
};
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::{Map, Value, json};

use super::{Coefficient, Optimizer, ParameterUpdate, Updated, WholeParameter};
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

/// A parameter of this many dimensions, flattened.
struct Step<'a> {
    shape: &'a [usize],
    learning_rate: f64,
    parameter: Tensor<1>,
    gradient: Tensor<1>,
    record: Option<BurnRecord>,
}

/// An optimizer of burn, whatever the dimensions of a parameter.
trait AnyRank: Send + Sync {
    fn step(&self, step: Step<'_>) -> Result<(Tensor<1>, Option<BurnRecord>)>;

    fn save(&self, record: &BurnRecord) -> Result<RecordLeaves>;

    /// `None` if leaves are missing.
    fn load(
        &self,
        rank: usize,
        leaves: RecordLeaves,
        device: &Device,
    ) -> Result<Option<BurnRecord>>;
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

impl<O: BurnRule> AnyRank for O {
    fn step(&self, step: Step<'_>) -> Result<(Tensor<1>, Option<BurnRecord>)> {
        let count: usize = step.shape.iter().product();
        with_rank!(step.shape.len(), D => {
            let mut shape = [0; D];
            shape.copy_from_slice(step.shape);
            let device = step.parameter.device();
            let record = step.record.map(|record| record.0.downcast::<O::State<D>>());
            let record = record.map(|record| O::to_device::<D>(record, &device));
            let parameter = step.parameter.reshape(shape);
            let gradient = step.gradient.reshape(shape);
            let (parameter, record) =
                BurnRule::step::<D>(self, step.learning_rate, parameter, gradient, record);
            let record = record.map(|record| BurnRecord(DynState::create(record, D)));
            Ok((parameter.reshape([count]), record))
        })
    }

    fn save(&self, record: &BurnRecord) -> Result<RecordLeaves> {
        let mut sink = StateSink::default();
        with_rank!(record.0.rank(), D => {
            record.0.downcast_ref::<O::State<D>>().state_flatten("", &mut sink);
            Ok(())
        })?;
        let mut leaves: RecordLeaves = sink.tensors.into_iter().collect();
        for (name, number) in sink.scalars {
            let whole = u64::try_from(number)
                .ok()
                .and_then(|it| i64::try_from(it).ok());
            let whole = whole.or_else(|| i64::try_from(number).ok());
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

    fn load(
        &self,
        rank: usize,
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
        with_rank!(rank, D => {
            let state = <O::State<D> as RecordState>::state_unflatten("", &mut source, device);
            Ok(state.map(|state| BurnRecord(DynState::create(state, D))))
        })
    }
}

/// One of burn's optimizers, with burn's arithmetic and defaults, for a
/// [`TrainState`](crate::TrainState): what burn's configurations `build`.
///
/// Clipping, accumulation, schedules, [`WeightDecay`](super::WeightDecay),
/// [`MovingAverage`](super::MovingAverage) and checkpoints work as with the optimizers of this
/// crate. Not on parameter servers, which cut parameters up, and not in compiled steps, whose
/// program would have the number of updates built in.
///
/// burn's L-BFGS is none of them: it computes the loss several times in one update.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::AdamConfig;
/// use distribute_core::{BurnOptimizer, MirroredStrategy, StrategyExt, Tensor, TrainState};
///
/// let adam = BurnOptimizer::new("burn:adam", AdamConfig::new().with_beta_1(0.8).build(), 1e-2);
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let mut state = strategy.scope(|device| {
///     TrainState::new(LinearConfig::new(3, 1).init(device), adam).clip_by_global_norm(1.0)
/// })?;
/// strategy.run(&mut state, |ctx, state| {
///     let loss = state.model.forward(Tensor::<2>::ones([4, 3], ctx.device())).sum();
///     let gradients = ctx.gradient(&loss, &state.model)?;
///     state.apply_gradients(ctx, gradients).map(drop)
/// })?;
/// let tensors = state.primary()?.to_tensors()?;
/// assert!(tensors.contains_key("optimizer_record/momentum.moment_1/weight"));
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct BurnOptimizer {
    name: &'static str,
    matrices: Option<Arc<dyn AnyRank>>,
    others: Arc<dyn AnyRank>,
    learning_rate: f64,
    config: Map<String, Value>,
}

impl BurnOptimizer {
    /// `name` is what checkpoints know it by, and must not be one of
    /// [this crate's](super::from_config) unless it is made alike.
    pub fn new(name: &'static str, optimizer: impl BurnRule, learning_rate: f64) -> Self {
        Self {
            name,
            matrices: None,
            others: Arc::new(optimizer),
            learning_rate,
            config: Map::new(),
        }
    }

    /// Another optimizer for parameters with two dimensions: for Muon, which takes no others.
    pub fn matrices(mut self, optimizer: impl BurnRule) -> Self {
        self.matrices = Some(Arc::new(optimizer));
        self
    }

    /// Hyper-parameters for checkpoints, beside the learning rate.
    pub fn described(mut self, config: Map<String, Value>) -> Self {
        self.config = config;
        self
    }

    fn of(&self, shape: &[usize]) -> &dyn AnyRank {
        match &self.matrices {
            Some(matrices) if shape.len() == 2 => &**matrices,
            _ => &*self.others,
        }
    }

    /// The leaves of a record of a parameter of this shape.
    pub(crate) fn save(&self, shape: &[usize], record: &BurnRecord) -> Result<RecordLeaves> {
        self.of(shape).save(record)
    }

    /// The record of a parameter of this shape; `None` if it is not whole.
    pub(crate) fn load(
        &self,
        shape: &[usize],
        leaves: RecordLeaves,
        device: &Device,
    ) -> Result<Option<BurnRecord>> {
        self.of(shape).load(shape.len(), leaves, device)
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

    fn burn(&self) -> Option<&BurnOptimizer> {
        Some(self)
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let &[Coefficient::Host(learning_rate)] = of.coefficients else {
            let instead = "use an optimizer of this crate";
            return Err(Error::not_compilable("an optimizer of burn", instead));
        };
        let Some(WholeParameter { shape, record }) = of.whole else {
            return Err(Error::invalid(format!(
                "the optimizer {} updates whole parameters, not parts of them",
                self.name
            )));
        };
        let (parameter, kept) = self.of(shape).step(Step {
            shape,
            learning_rate,
            parameter: of.parameter,
            gradient: of.gradient,
            record: record.take(),
        })?;
        *record = kept;
        Ok((parameter, of.slots))
    }
}

pub(super) type Build = fn(&'static str, f64) -> BurnOptimizer;

/// burn's optimizers with burn's defaults.
pub(super) const ALL: [(&str, Build); 10] = [
    ("burn:adafactor", |name, rate| {
        BurnOptimizer::new(name, AdafactorConfig::new().build(), rate)
    }),
    ("burn:adagrad", |name, rate| {
        BurnOptimizer::new(name, AdaGradConfig::new().build(), rate)
    }),
    ("burn:adam", |name, rate| {
        BurnOptimizer::new(name, AdamConfig::new().build(), rate)
    }),
    ("burn:adamw", |name, rate| {
        BurnOptimizer::new(name, AdamWConfig::new().build(), rate)
    }),
    ("burn:adan", |name, rate| {
        BurnOptimizer::new(name, AdanConfig::new().build(), rate)
    }),
    ("burn:lamb", |name, rate| {
        BurnOptimizer::new(name, LambConfig::new().build(), rate)
    }),
    ("burn:lion", |name, rate| {
        BurnOptimizer::new(name, LionConfig::new().build(), rate)
    }),
    ("burn:muon", muon),
    ("burn:rmsprop", |name, rate| {
        BurnOptimizer::new(name, RmsPropConfig::new().build(), rate)
    }),
    ("burn:sgd", |name, rate| {
        BurnOptimizer::new(name, SgdConfig::new().build(), rate)
    }),
];

/// Muon for matrices, with steps as large as AdamW's, which all else is left to.
fn muon(name: &'static str, rate: f64) -> BurnOptimizer {
    let muon = MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
    BurnOptimizer::new(name, AdamWConfig::new().build(), rate).matrices(muon.build())
}
