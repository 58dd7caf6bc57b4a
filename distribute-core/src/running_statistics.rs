//! Running statistics of a model: tensors that its forward pass changes, such as the moving mean
//! and variance of a batch normalization (burn's `RunningState`).
//!
//! Clones of a burn module share them, and so do forks. Every replica has its own here, as in
//! TensorFlow, where they are variables with `ON_READ` synchronization and `MEAN` aggregation: a
//! replica changes its own, and outside of steps they are read as the mean over all replicas.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use burn::module::{Flag, Module, Param};
use burn::tensor::{DType, Tensor, TensorData};
use distribute_collectives::tree;

use crate::computed::is_off_host;
use crate::local_batch_norm::{SYNCHRONIZED, is_own_statistic};
use crate::nest::different_structure;
use crate::parameters::{self, FloatTensor, Parameter, Walk};
use crate::{Error, ReplicaContext, Result, WorkerGroup};

/// Which tensors of a model are running statistics; the model keeps its structure.
///
/// A strategy's [`Mirrored`](crate::Mirrored) value uses this itself. It is for code that keeps
/// copies of a model on replicas in another way.
///
/// ```
/// use burn::nn::{BatchNormConfig, LinearConfig};
/// use distribute_core::{Device, RunningStatistics, Tensor};
///
/// let device = Device::flex().autodiff();
/// let layer = BatchNormConfig::new(3).init(&device);
/// let statistics = RunningStatistics::of(&layer);
/// assert_eq!(statistics.paths(), ["running_mean", "running_var"]);
/// assert!(RunningStatistics::of(&LinearConfig::new(3, 1).init(&device)).is_empty());
///
/// let own = statistics.own_copy(&layer);
/// own.forward(Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]], &device));
/// let mean = statistics.mean(&[own, layer])?;
/// let moved = mean[0].clone().into_data().to_vec::<f32>().unwrap();
/// assert!((moved[0] - 0.1).abs() < 1e-6, "the mean of 0.1 x 2 and 0");
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RunningStatistics {
    /// Their places among the model's float parameters, in visit order.
    places: Arc<[usize]>,
    paths: Arc<[String]>,
    /// The path of the first layer that no compiled step can train.
    first_unknown: Option<Arc<str>>,
    /// The path of the first [`SyncBatchNorm`](crate::SyncBatchNorm).
    first_synchronized: Option<Arc<str>>,
}

impl RunningStatistics {
    /// The running statistics of a model. They are found by their kind: of all tensors of a module
    /// only these are shared by its clones.
    pub fn of<M: Module>(model: &M) -> Self {
        let probe = model.valid();
        let before = floats(&probe);
        let (emptied, outcome) = parameters::mapped(probe.clone(), |parameter: Parameter<'_>| {
            if let Some(float) = parameter.tensor.float() {
                float.set_other_shape();
            }
            Ok(())
        });
        debug_assert!(outcome.is_ok(), "nothing here fails");
        drop(emptied);
        let after = floats(&probe);
        let pairs = before.into_iter().zip(after).enumerate();
        let changed = pairs.filter(|(_, (before, after))| before.shape != after.shape);
        let found: Vec<_> = changed.map(|(place, (float, _))| (place, float)).collect();
        let first = |wanted: fn(&Float) -> bool| {
            let mut floats = found.iter().map(|(_, float)| float);
            let float = floats.find(|float| wanted(float))?;
            Some(layer_of(&float.path).into())
        };
        Self {
            first_unknown: first(|float| !float.is_known),
            first_synchronized: first(|float| float.is_synchronized),
            places: found.iter().map(|(place, _)| *place).collect(),
            paths: found.into_iter().map(|(_, float)| float.path).collect(),
        }
    }

    /// Whether the model has none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Their paths in visit order, `norm.running_mean` for example.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// The path of the model's first [`SyncBatchNorm`](crate::SyncBatchNorm), which every replica
    /// has to call in every step; empty if the model is one.
    pub fn synchronized_layer(&self) -> Option<&str> {
        self.first_synchronized.as_deref()
    }

    /// Refuses a step that changes the model, if it is to be captured: the running statistics of a
    /// unknown layer. The statistics of burn's batch normalization, and of this crate's, are
    /// tensors of the state like weights.
    ///
    /// # Errors
    /// [`Error::NotCompilable`], which names the first layer.
    pub(crate) fn check_capture(&self) -> Result<()> {
        match &self.first_unknown {
            None => Ok(()),
            Some(layer) => Err(Error::not_compilable(
                format!("training the layer `{layer}`, which has running statistics,"),
                "a compiled step knows the statistics of burn's `BatchNorm`, `LocalBatchNorm` and \
                 `SyncBatchNorm` only; use one of these, or pass the state as `&Mirrored` where \
                 it is only evaluated",
            )),
        }
    }

    /// A copy of the model with running statistics of its own; its other tensors are handles of the
    /// same values.
    #[must_use]
    pub fn own_copy<M: Module>(&self, model: &M) -> M {
        if self.is_empty() {
            return model.clone();
        }
        // burn makes new running states in two places only: for validation, and for training.
        let plain = model.valid();
        let (mut all, mut has_autodiff) = (VecDeque::new(), false);
        let taken = Taken {
            all: &mut all,
            has_autodiff: &mut has_autodiff,
        };
        let visited = parameters::visit(model, taken);
        let copy = if has_autodiff { plain.train() } else { plain };
        let (copy, given) = parameters::mapped(copy, HandleRestorer(all));
        debug_assert!(visited.and(given).is_ok(), "nothing here fails");
        copy
    }

    /// The model `of_others` with the running statistics of `own`.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), if the models differ in structure.
    pub fn keep_own<M: Module>(&self, own: &M, of_others: &M) -> Result<M> {
        let copy = self.own_copy(of_others);
        self.write(&copy, self.read(own))?;
        Ok(copy)
    }

    /// Their values, flat and in visit order, without autodiff.
    pub fn read<M: Module>(&self, model: &M) -> Vec<Tensor<1>> {
        if self.is_empty() {
            return Vec::new();
        }
        settle(model);
        let mut values = Vec::with_capacity(self.places.len());
        let outcome = parameters::visit(model, self.each(|float| values.push(float.flat())));
        debug_assert!(outcome.is_ok(), "nothing here fails");
        values
    }

    /// Replaces their values, in the order and with the sizes of [`read`](Self::read), in the model
    /// and its clones.
    ///
    /// # Errors
    /// For another number of values ([`Error::InvalidArgument`]), and for one of another size
    /// ([`Error::Shape`]); nothing is replaced then.
    pub fn write<M: Module>(&self, model: &M, values: Vec<Tensor<1>>) -> Result<()> {
        let own = self.read(model);
        if own.len() != values.len() {
            return Err(different_structure());
        }
        for (own, new) in own.iter().zip(&values) {
            if own.dims() != new.dims() {
                let op = "running statistics of another model";
                return Err(Error::shape(op, &own.dims(), &new.dims()));
            }
        }
        if self.is_empty() {
            return Ok(());
        }
        let mut own = own.into_iter().zip(values);
        let put = |float: &mut dyn FloatTensor| {
            if let Some((own, value)) = own.next() {
                float.set_flat(value.to_device(&own.device()));
            }
        };
        parameters::map(model.clone(), self.each(put)).map(drop)
    }

    /// A walk that does this with each of them.
    fn each(&self, mut work: impl FnMut(&mut dyn FloatTensor)) -> impl Walk {
        let mut place = 0;
        move |parameter: Parameter<'_>| {
            if let Some(float) = parameter.tensor.float() {
                if self.places.binary_search(&place).is_ok() {
                    work(float);
                }
                place += 1;
            }
            Ok(())
        }
    }

    /// The mean of their values over the models of all replicas of this process: computed in f64,
    /// in canonical order ([`tree`]), and rounded once.
    ///
    /// # Errors
    /// If a device cannot hand them out, and [`Error::StatisticsNotFinite`].
    pub fn mean<'a, M: Module + 'a>(
        &self,
        models: impl IntoIterator<Item = &'a M>,
    ) -> Result<Vec<Tensor<1>>> {
        let own = models.into_iter().enumerate().map(|(replica, model)| {
            let values = self.read(model);
            check_finite(&self.paths, &values, replica, 0)?;
            Sums::of(&values)
        });
        Sums::of_all(own.collect::<Result<_>>()?)?.mean()
    }

    /// Brings the statistics of a model up to date.
    pub(crate) fn settle<M: Module>(&self, model: &M) {
        if !self.is_empty() {
            settle(model);
        }
    }

    /// Looks in a step, before the update after this many others, whether they are finite. Not
    /// where they are replaced at its end, because the replica's part of the batch is empty.
    ///
    /// # Errors
    /// [`Error::StatisticsNotFinite`], which names the first that is not.
    pub(crate) fn check<M: Module>(
        &self,
        ctx: &ReplicaContext,
        model: &M,
        updates: u64,
    ) -> Result<()> {
        if self.is_empty() || ctx.trace().is_some() || ctx.notes().has_no_examples() {
            return Ok(());
        }
        check_finite(&self.paths, &self.read(model), ctx.replica_id(), updates)
    }
}

/// The running statistics of some replicas, added up in f64.
#[derive(Default)]
pub(crate) struct Sums {
    sums: Vec<Vec<f64>>,
    like: Vec<Tensor<1>>,
    replicas: usize,
}

impl Sums {
    /// The statistics of one replica.
    ///
    /// # Errors
    /// If a device cannot hand them out.
    pub(crate) fn of(values: &[Tensor<1>]) -> Result<Self> {
        Ok(Self {
            sums: values.iter().map(elements).collect::<Result<_>>()?,
            like: values.to_vec(),
            replicas: 1,
        })
    }

    /// The statistics of several replicas, added up in canonical order.
    pub(crate) fn of_all(replicas: Vec<Self>) -> Result<Self> {
        let sums = tree::fold(replicas.into_iter().map(Ok), |sum: Result<Self>, other| {
            let (mut sum, other) = (sum?, other?);
            if sum.sums.len() != other.sums.len() {
                return Err(different_structure());
            }
            for (sum, other) in sum.sums.iter_mut().zip(other.sums) {
                sum.iter_mut()
                    .zip(other)
                    .for_each(|(sum, other)| *sum += other);
            }
            sum.replicas += other.replicas;
            Ok(sum)
        });
        sums.unwrap_or_else(|| Ok(Self::default()))
    }

    /// The mean over the replicas that were added.
    pub(crate) fn mean(self) -> Result<Vec<Tensor<1>>> {
        let count = self.replicas.max(1) as f64;
        let means = self.sums.into_iter().zip(self.like).map(|(sums, like)| {
            let mean: Vec<f64> = sums.into_iter().map(|sum| sum / count).collect();
            let data = TensorData::new(mean, like.shape())
                .try_cast(like.dtype())
                .map_err(Error::internal)?;
            Ok(Tensor::from_data(data, (&like.device(), like.dtype())))
        });
        means.collect()
    }

    /// The sums over all replicas of all workers, from the sums of this worker's parts.
    pub(crate) fn of_workers(mut parts: Vec<Self>, workers: &WorkerGroup) -> Result<Self> {
        let sums = parts.iter().map(|part| part.sums.concat()).collect();
        let mut all = parts.swap_remove(0);
        let mut sums = workers.add_up(sums)?.into_iter();
        for own in &mut all.sums {
            *own = sums.by_ref().take(own.len()).collect();
        }
        all.replicas = workers.num_replicas();
        Ok(all)
    }
}

fn elements(value: &Tensor<1>) -> Result<Vec<f64>> {
    let data = value
        .clone()
        .try_into_data()
        .map_err(Error::internal)?
        .try_cast(DType::F64)
        .map_err(Error::internal)?;
    data.try_into_vec::<f64>()
        .map_err(|_| different_structure())
}

fn is_finite(value: &Tensor<1>) -> Result<bool> {
    Ok(elements(value)?.iter().all(|element| element.is_finite()))
}

/// Refuses values of a replica, after this many updates, that are not finite. Those on a GPU are
/// not waited for.
///
/// # Errors
/// [`Error::StatisticsNotFinite`], which names the first.
pub(crate) fn check_finite(
    paths: &[String],
    values: &[Tensor<1>],
    replica: usize,
    updates: u64,
) -> Result<()> {
    for (path, value) in paths.iter().zip(values) {
        if !is_off_host(&value.device()) && !is_finite(value)? {
            return Err(Error::StatisticsNotFinite {
                path: path.clone(),
                replica,
                updates,
            });
        }
    }
    Ok(())
}

/// The values, with the values of `before` in place of non-finite ones.
pub(crate) fn finite_or(after: Vec<Tensor<1>>, before: &[Tensor<1>]) -> Result<Vec<Tensor<1>>> {
    let pairs = after.into_iter().zip(before);
    let chosen = pairs.map(|(after, before)| {
        if is_finite(&after)? {
            Ok(after)
        } else {
            Ok(before.clone())
        }
    });
    chosen.collect()
}

/// Brings running statistics up to date: burn keeps the last value that a thread has given until
/// the next one, or until it makes the copy for validation.
pub(crate) fn settle<M: Module>(model: &M) {
    drop(model.valid());
}

/// A float parameter.
struct Float {
    path: String,
    shape: Vec<usize>,
    /// Whether a compiled step can train it, if it is a running statistic.
    is_known: bool,
    /// Whether it belongs to a [`SyncBatchNorm`](crate::SyncBatchNorm).
    is_synchronized: bool,
}

/// All float parameters.
fn floats<M: Module>(model: &M) -> Vec<Float> {
    let mut floats = Vec::new();
    let outcome = parameters::visit(model, |parameter: Parameter<'_>| {
        let spec = parameter.tensor.spec();
        if spec.dtype.is_float() {
            let is_synchronized = parameter.container() == SYNCHRONIZED;
            floats.push(Float {
                path: parameter.path.to_string(),
                shape: spec.shape,
                is_known: is_synchronized || is_own_statistic(&parameter),
                is_synchronized,
            });
        }
        Ok(())
    });
    debug_assert!(outcome.is_ok(), "nothing here fails");
    floats
}

/// The path of the layer that has a parameter.
pub(crate) fn layer_of(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(layer, _)| layer)
}

/// Takes handles of a model's parameters and flags, to put them into a copy of it.
struct Taken<'a> {
    all: &'a mut VecDeque<Box<dyn Any>>,
    /// Whether a float has autodiff.
    has_autodiff: &'a mut bool,
}

impl Walk for Taken<'_> {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        self.all.push_back(parameter.tensor.handle());
        if let Some(float) = parameter.tensor.float() {
            *self.has_autodiff |= float.tracking().autodiff.is_some();
        }
        Ok(())
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.all.push_back(Box::new(flag.clone()));
        flag
    }
}

/// Puts stored handles of parameters and flags back into a model.
struct HandleRestorer(VecDeque<Box<dyn Any>>);

impl Walk for HandleRestorer {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        if let Some(handle) = self.0.pop_front() {
            parameter.tensor.set_handle(handle);
        }
        Ok(())
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        let given = self.0.pop_front().and_then(|given| given.downcast().ok());
        given.map_or(flag, |given| *given)
    }
}
