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
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, AdjustLrFn, DynOptimizer,
    DynState, LambConfig, LionConfig, MuonConfig, Optimizer as BurnRule, RmsPropConfig, SgdConfig,
    StateSink, StateSource,
};
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::{Map, Value, json};

use super::{Coefficient, Optimizer, ParameterUpdate, Updated, WholeParameter};
use crate::macros::setters;
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

    setters! { self;
        /// Another optimizer for parameters with two dimensions: for Muon, which takes no others.
        matrices(optimizer: impl BurnRule) => matrices = Some(Arc::new(optimizer));

        /// Hyper-parameters for checkpoints, beside the learning rate.
        described(config: Map<String, Value>) => config = config;
    }

    fn of(&self, shape: &[usize]) -> &dyn AnyRank {
        match &self.matrices {
            Some(matrices) if shape.len() == 2 => &**matrices,
            _ => &*self.others,
        }
    }

    /// The leaves of a record of a parameter of this shape.
    pub(crate) fn save(&self, shape: &[usize], record: &BurnRecord) -> Result<RecordLeaves> {
        let mut sink = StateSink::default();
        self.of(shape).state_flatten("", &record.0, &mut sink);
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

    /// The record of a parameter of this shape; `None` if it is not whole.
    pub(crate) fn load(
        &self,
        shape: &[usize],
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
        with_rank!(shape.len(), D => {
            let record = self.of(shape).state_unflatten(D, "", &mut source, device);
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
        let optimizer = self.of(whole.shape);
        let parameter = optimizer.step(learning_rate, [of.parameter, of.gradient], whole)?;
        Ok((parameter, of.slots))
    }
}

pub(super) type Build = fn(&'static str, f64) -> BurnOptimizer;

/// The optimizer of a configuration of burn with its defaults.
macro_rules! default_of {
    ($config:ident) => {
        |name, rate| BurnOptimizer::new(name, $config::new().build(), rate)
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
fn muon(name: &'static str, rate: f64) -> BurnOptimizer {
    let muon = MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
    BurnOptimizer::new(name, AdamWConfig::new().build(), rate).matrices(muon.build())
}
