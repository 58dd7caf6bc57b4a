//! Batch normalization over the batches of all replicas.

use burn::config::Config;
use burn::module::{Flag, Initializer, Module, Param, ParamId, RunningState};
use burn::nn::BatchNorm;
use burn::tensor::{Device, Tensor, assert_shape};
use distribute_collectives::ReduceOp;

use crate::local_batch_norm::{check_features, wide};
use crate::parameters::{self, Parameter};
use crate::scope::Step;
use crate::trace::{captured, tracked, without_autodiff};
use crate::{Error, Result, nest, scope};

/// Makes a [`SyncBatchNorm`]; the defaults are Keras'.
///
/// ```
/// use distribute_core::{Device, SyncBatchNormConfig};
///
/// let norm = SyncBatchNormConfig::new(16).with_momentum(0.9).init(&Device::flex().autodiff())?;
/// assert_eq!(norm.moving_variance.value().dims(), [16]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Config, Debug)]
pub struct SyncBatchNormConfig {
    /// The number of features: the extent of axis 1 of the input.
    pub num_features: usize,
    /// The momentum: the weight of the old moving statistics in each step (burn's momentum is one
    /// minus this).
    #[config(default = 0.99)]
    pub momentum: f64,
    /// The number that is added to variances.
    #[config(default = 1e-3)]
    pub epsilon: f64,
    /// Whether there is a trainable factor, gamma.
    #[config(default = true)]
    pub scale: bool,
    /// Whether there is a trainable summand, beta.
    #[config(default = true)]
    pub center: bool,
}

impl SyncBatchNormConfig {
    /// The layer with gamma and moving variance 1, beta and moving mean 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no features, a momentum that is not between 0 and 1, and an
    /// epsilon that is not positive.
    pub fn init(&self, device: &Device) -> Result<SyncBatchNorm> {
        let refused = |name: &str, found: f64, wanted: &str| {
            let what = format!("SyncBatchNorm: {name} is {found}, but must be {wanted}");
            Err(Error::invalid(what))
        };
        let (size, momentum, epsilon) = ([self.num_features], self.momentum, self.epsilon);
        if size == [0] {
            return refused("num_features", 0.0, "1 or more");
        }
        if !(0.0..=1.0).contains(&momentum) {
            return refused("momentum", momentum, "from 0 to 1");
        }
        if !(epsilon.is_finite() && epsilon > 0.0) {
            return refused("epsilon", epsilon, "a positive number");
        }
        let (ones, zeros) = (Initializer::Ones, Initializer::Zeros);
        Ok(SyncBatchNorm {
            gamma: self.scale.then(|| ones.init(size, device)),
            beta: self.center.then(|| zeros.init(size, device)),
            training: Param::from_bool(true),
            moving_mean: RunningState::new(Tensor::zeros(size, device)),
            moving_variance: RunningState::new(Tensor::ones(size, device)),
            momentum,
            epsilon,
        })
    }
}

/// Batch normalization with the mean and variance of the examples of all replicas of all workers
/// (Keras: `BatchNormalization(synchronized=True)`; PyTorch: `SyncBatchNorm`).
///
/// `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta`. The input has the shape
/// `[batch, features, ...]`; mean and variance are over all axes but the features'. Replicas may
/// have other numbers of examples, or none: every value weighs the same, so that the layer computes
/// what it would on one device with the whole batch.
///
/// [`forward`](Self::forward) is called as burn's: a model of burn's `BatchNorm` needs this type in
/// its place and [`SyncBatchNorm::from`] where the layer is made, and its own `forward` stays. In a
/// step all replicas call it together.
///
/// Each forward pass makes two all-reduces of `features` numbers: the sums with the number of
/// values, and the sums of the squared distances from the mean, which lose no digits. Its backward
/// pass makes two more. A replica sums its own part first, in f32 for f16 and bf16: the last axis
/// first, and the examples last, in chains of 16 whose sums are added in the same way, so that a
/// large batch loses no digits. The order over the replicas is that of
/// [`all_reduce_tensor`](crate::ReplicaContext::all_reduce_tensor). Gradients are gradients of the
/// sum of all replicas' losses.
///
/// The moving statistics are updated by `moving * momentum + batch * (1 - momentum)`, with the
/// variance divided by the number of values, as in Keras 3 and burn. They are equal on all
/// replicas. A global batch without examples leaves them as they are. In a compiled step they stay
/// on the devices, like the weights.
///
/// ```
/// use distribute_core::{MirroredStrategy, PerReplica, StrategyExt, SyncBatchNormConfig, Tensor};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let mut norm = strategy.try_scope(|device| SyncBatchNormConfig::new(1).init(device))?;
/// let device = norm.primary()?.moving_mean.value().device();
/// let parts = [1.0_f32, 3.0].map(|x| Tensor::<2>::full([2, 1], x, &device)).to_vec();
/// let outputs = strategy.run((&mut norm, PerReplica::new(parts)), |_, (norm, x)| {
///     Ok(norm.forward(x))
/// })?;
/// // The mean is 2 and the variance 1, on both replicas.
/// let second: f32 = outputs.values()[1].clone().mean().into_scalar();
/// assert!((second - 1.0).abs() < 1e-3);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct SyncBatchNorm {
    /// The trainable factor.
    pub gamma: Option<Param<Tensor<1>>>,
    /// The trainable summand.
    pub beta: Option<Param<Tensor<1>>>,
    /// Whether the layer trains; a layer that is frozen normalizes with the moving statistics.
    pub training: Param<Flag>,
    /// The moving mean.
    pub moving_mean: RunningState<Tensor<1>>,
    /// The moving variance.
    pub moving_variance: RunningState<Tensor<1>>,
    /// What of the old moving statistics stays in each step.
    pub momentum: f64,
    /// The number that is added to variances.
    pub epsilon: f64,
}

/// burn's layer as one over all replicas, with its tensors, its epsilon and its momentum, which is
/// the weight of the new statistics there and of the old ones here.
///
/// ```
/// use burn::nn::BatchNormConfig;
/// use distribute_core::{Device, SyncBatchNorm};
///
/// let layer = BatchNormConfig::new(16).init(&Device::flex().autodiff());
/// let layer = SyncBatchNorm::from(layer);
/// assert_eq!((layer.momentum, layer.epsilon), (0.9, 1e-5));
/// ```
impl From<BatchNorm> for SyncBatchNorm {
    fn from(layer: BatchNorm) -> Self {
        Self {
            gamma: Some(layer.gamma),
            beta: Some(layer.beta),
            training: layer.training,
            moving_mean: layer.running_mean,
            moving_variance: layer.running_var,
            momentum: 1.0 - layer.momentum,
            epsilon: layer.epsilon,
        }
    }
}

impl SyncBatchNorm {
    /// burn's layer with the same tensors and the same moving statistics, for a program that does
    /// not have this crate. A factor or summand that the layer does not have is 1 or 0 there, and
    /// is not trained.
    pub fn to_burn(&self) -> BatchNorm {
        let mean = self.moving_mean.value();
        let constant = |value: f64| {
            let tensor = without_autodiff(mean.full_like(value));
            Param::initialized(ParamId::new(), tensor.set_require_grad(false))
        };
        BatchNorm {
            gamma: self.gamma.clone().unwrap_or_else(|| constant(1.0)),
            beta: self.beta.clone().unwrap_or_else(|| constant(0.0)),
            training: self.training.clone(),
            running_mean: self.moving_mean.clone(),
            running_var: self.moving_variance.clone(),
            momentum: 1.0 - self.momentum,
            epsilon: self.epsilon,
        }
    }

    /// Normalizes with the statistics of all replicas' inputs, and updates the moving ones; a layer
    /// or an input that does not train ([`Module::valid`], or frozen) with the moving ones.
    ///
    /// It is called as burn's layer, without the step's context, on the thread of the step. In
    /// training it blocks until all replicas have called it, and every replica must use the output
    /// in its loss, or none. Outside of a step it is the layer of one replica, on any thread.
    ///
    /// # Errors
    /// A failure is an error of the step, as `run` returns it: another number of features than the
    /// layer's, with the path of the layer if the step computes gradients of its model, or a
    /// failure of another replica. The output is not to be used then: nothing of the step is, as
    /// [`ReplicaContext::gradient`](crate::ReplicaContext::gradient), `apply_gradients`, the
    /// collective calls and the end of the step all return the failure. Outside of a step burn
    /// panics where its own layer does, and [`forward_inference`](Self::forward_inference) returns
    /// an error.
    ///
    /// One value per feature in the global batch is none of them: its variance is 0, as in Keras,
    /// so the output is `beta`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        self.in_step(input, None)
    }

    /// [`forward`](Self::forward) of a batch that was filled up: the examples whose weight is 0
    /// count in no statistic (Keras: `mask`), examples of weight 1 do. The weights are `[batch]`,
    /// as `Weighted` of `distribute-data` has them. Without it a compiled step, whose batches have
    /// one size, would have the copies that fill the last one up in its statistics.
    ///
    /// ```
    /// use distribute_core::{DefaultStrategy, StrategyExt, SyncBatchNormConfig, Tensor};
    ///
    /// let strategy = DefaultStrategy::new();
    /// let mut norm = strategy.try_scope(|device| SyncBatchNormConfig::new(1).init(device))?;
    /// strategy.run(&mut norm, |ctx, norm| {
    ///     let x = Tensor::<2>::from_floats([[1.0], [3.0], [100.0]], ctx.device());
    ///     let weights = Tensor::<1>::from_floats([1.0, 1.0, 0.0], ctx.device());
    ///     Ok(norm.forward_weighted(x, weights))
    /// })?;
    /// let mean: f32 = norm.primary()?.moving_mean.value().into_scalar();
    /// assert!((mean - 0.02).abs() < 1e-6, "0.99 x 0 + 0.01 x 2");
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Self::forward), also for another number of weights.
    pub fn forward_weighted<const D: usize>(
        &self,
        input: Tensor<D>,
        weights: Tensor<1>,
    ) -> Tensor<D> {
        self.in_step(input, Some(weights))
    }

    /// Normalizes; a failure is noted in the step that runs on this thread.
    fn in_step<const D: usize>(&self, input: Tensor<D>, weights: Option<Tensor<1>>) -> Tensor<D> {
        let step = scope::running_step();
        if step.is_none() {
            let [num_features] = self.moving_mean.value().dims();
            assert_shape!(input, [_, num_features, ..]);
            if let Some(weights) = &weights {
                let examples = input.dims()[0];
                assert_shape!(weights, [examples]);
            }
        }
        let output = self.normalize(step.as_ref(), input.clone(), weights);
        output.unwrap_or_else(|error| {
            if let Some(step) = step {
                // The path of the layer says nothing of a failure elsewhere.
                let is_own = matches!(error, Error::Shape { .. });
                step.fail(error, self.id().filter(|_| is_own));
            }
            input
        })
    }

    /// By which a model that has the layer knows it.
    fn id(&self) -> Option<ParamId> {
        let mut id = None;
        let walked = parameters::visit(self, |parameter: Parameter<'_>| {
            id = Some(parameter.id);
            Ok(())
        });
        debug_assert!(walked.is_ok(), "nothing here fails");
        id
    }

    fn normalize<const D: usize>(
        &self,
        step: Option<&Step>,
        input: Tensor<D>,
        weights: Option<Tensor<1>>,
    ) -> Result<Tensor<D>> {
        if let Some(weights) = &weights
            && weights.dims() != [input.dims()[0]]
        {
            let op = "SyncBatchNorm: there is one weight per example";
            return Err(Error::shape(op, &[input.dims()[0]], &weights.dims()));
        }
        let has_gradient = tracked(&input).is_some() || input.is_autodiff();
        if !(self.training.is_enabled() && has_gradient) {
            return self.forward_inference(input);
        }
        let dtype = input.dtype();
        let shape = self.check(&input)?;
        let features = shape[1];
        let input = wide(input);
        let weights = weights.map(|weights| {
            let mut shape = [1; D];
            shape[0] = weights.dims()[0];
            like(without_autodiff(weights), &input).reshape(shape)
        });
        let counted = |values: Tensor<D>| match &weights {
            Some(weights) => values * weights.clone(),
            None => values,
        };
        let own_count = own_count(&input, weights.as_ref());
        let sums = Tensor::cat(vec![per_feature(counted(input.clone())), own_count], 0);
        let sums = all_reduce(step, sums)?;
        let Some(count) = Count::of(step, &input, weights.is_some(), &sums)? else {
            // Without examples, but with the parameters' part in the gradients.
            return Ok(self.scaled(input, shape).cast(dtype));
        };
        let mean = count.divide(sums.narrow(0, 0, features));
        let centered = input - mean.clone().reshape(shape);
        let squares = per_feature(counted(centered.clone().powi_scalar(2)));
        let squares = all_reduce(step, squares)?;
        let variance = count.divide(squares);
        self.update(&self.moving_mean, mean, &count);
        self.update(&self.moving_variance, variance.clone(), &count);
        let deviation = variance.add_scalar(self.epsilon).sqrt().reshape(shape);
        Ok(self.scaled(centered / deviation, shape).cast(dtype))
    }

    /// Normalizes with the moving statistics; also outside of steps.
    ///
    /// # Errors
    /// [`Error::Shape`] for an input with another number of features.
    pub fn forward_inference<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>> {
        let (shape, dtype) = (self.check(&input)?, input.dtype());
        let input = wide(input);
        let [mean, variance] = [&self.moving_mean, &self.moving_variance].map(|state| {
            let value = without_autodiff(state.value());
            like(value, &input)
        });
        let deviation = variance.add_scalar(self.epsilon).sqrt().reshape(shape);
        let normalized = (input - mean.reshape(shape)) / deviation;
        Ok(self.scaled(normalized, shape).cast(dtype))
    }

    /// The shape of a tensor of features beside the input.
    fn check<const D: usize>(&self, input: &Tensor<D>) -> Result<[usize; D]> {
        let layer = "SyncBatchNorm: the input is [batch, features, ...]";
        check_features(layer, &self.moving_mean.value(), input)
    }

    fn scaled<const D: usize>(&self, normalized: Tensor<D>, shape: [usize; D]) -> Tensor<D> {
        let dtype = normalized.dtype();
        let parameter = |param: &Param<Tensor<1>>| param.val().cast(dtype).reshape(shape);
        let scaled = match &self.gamma {
            Some(gamma) => normalized * parameter(gamma),
            None => normalized,
        };
        match &self.beta {
            Some(beta) => scaled + parameter(beta),
            None => scaled,
        }
    }

    /// Moves a statistic towards that of the batch.
    fn update(&self, moving: &RunningState<Tensor<1>>, batch: Tensor<1>, count: &Count) {
        let old = moving.value();
        let batch = without_autodiff(batch).cast(old.dtype());
        let kept = without_autodiff(old.clone()).mul_scalar(self.momentum);
        let new = kept + batch.mul_scalar(1.0 - self.momentum);
        let new = count.or_old(new, &old);
        moving.update(tracked_like(new, &old));
        // burn keeps an update back until the thread asks for the value.
        drop(moving.value_sync());
    }
}

/// The sum over all replicas of the step, through which gradients flow.
fn all_reduce(step: Option<&Step>, mut sums: Tensor<1>) -> Result<Tensor<1>> {
    if let Some(step) = step {
        step.peers().all_reduce_tensor(ReduceOp::Sum, &mut sums)?;
    }
    Ok(sums)
}

/// How many values of each feature the replica has, as a tensor beside its sums.
fn own_count<const D: usize>(input: &Tensor<D>, weights: Option<&Tensor<D>>) -> Tensor<1> {
    let values: usize = input.dims()[2..].iter().product();
    match weights {
        Some(weights) => weights.clone().sum().mul_scalar(values as f64),
        None => {
            let count = (input.dims()[0] * values) as f64;
            Tensor::full([1], count, (&input.device(), input.dtype()))
        }
    }
}

/// How many values of each feature all replicas have together.
enum Count {
    Known(f64),
    /// In a captured step, of weights; may be 0.
    Captured(Box<Tensor<1>>),
}

impl Count {
    /// `None` if it is known that there are no values. The count of all replicas is the last of
    /// their `sums`.
    fn of<const D: usize>(
        step: Option<&Step>,
        input: &Tensor<D>,
        is_weighted: bool,
        sums: &Tensor<1>,
    ) -> Result<Option<Self>> {
        let features = input.dims()[1];
        let count = || sums.clone().narrow(0, features, 1);
        let trace = step.and_then(|step| step.peers().capture());
        let known = match trace {
            Some(_) if is_weighted => {
                return Ok(Some(Self::Captured(Box::new(without_autodiff(count())))));
            }
            // All replicas of a program have parts of one shape.
            Some(_) => {
                let own = input.shape().num_elements() / features;
                (own * step.map_or(1, Step::num_replicas)) as f64
            }
            None => {
                let count = count().try_into_data().map_err(Error::internal)?;
                count.iter::<f64>().next().unwrap_or(0.0)
            }
        };
        Ok((known > 0.0).then_some(Self::Known(known)))
    }

    /// The mean of what was added up over this many values; 0 of none.
    fn divide(&self, sums: Tensor<1>) -> Tensor<1> {
        match self {
            Self::Known(count) => sums.div_scalar(*count),
            Self::Captured(count) => sums / count.as_ref().clone().clamp_min(1.0),
        }
    }

    /// The new value of a statistic, or the old one where there are no values.
    fn or_old(&self, new: Tensor<1>, old: &Tensor<1>) -> Tensor<1> {
        match self {
            Self::Known(_) => new,
            Self::Captured(count) => {
                let is_empty = count.as_ref().clone().equal_elem(0.0).expand(new.dims());
                new.mask_where(is_empty, old.clone())
            }
        }
    }
}

/// Examples whose sums are added one after the other: rounding errors grow with the length of such
/// a chain.
const CHAIN: usize = 16;

/// The sums over all axes but the features', of the replica's own part: the last axis first. The
/// examples are added in chains of [`CHAIN`], in their order, whose sums are added in the same way
/// until one is left.
fn per_feature<const D: usize>(values: Tensor<D>) -> Tensor<1> {
    let [mut examples, features] = [values.dims()[0], values.dims()[1]];
    let sums = (2..D).rev().fold(values, |sums, axis| sums.sum_dim(axis));
    let mut sums = sums.reshape([examples, features]);
    while examples > CHAIN {
        let (chains, rest) = (examples / CHAIN, examples % CHAIN);
        let whole = sums
            .clone()
            .narrow(0, 0, chains * CHAIN)
            .reshape([chains, CHAIN, features])
            .sum_dim(1);
        let mut all = vec![whole.reshape([chains, features])];
        if rest > 0 {
            all.push(sums.narrow(0, chains * CHAIN, rest).sum_dim(0));
        }
        sums = Tensor::cat(all, 0);
        examples = examples.div_ceil(CHAIN);
    }
    sums.sum_dim(0).reshape([features])
}

/// A constant beside an input: of its type, and with autodiff where it has.
fn like<const D: usize>(constant: Tensor<1>, input: &Tensor<D>) -> Tensor<1> {
    tracked_like(constant.cast(input.dtype()), input)
}

/// With the autodiff of another tensor, but not in a captured step.
fn tracked_like<const D: usize>(tensor: Tensor<1>, other: &Tensor<D>) -> Tensor<1> {
    if captured(other).is_some() {
        return tensor;
    }
    nest::tracked(tensor, nest::tracking(other).without_gradient())
}
