//! Values that are copied to every replica, and the parts that they are made of.

use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use crate::nest::{FloatLeaf, LeafTensor, different_structure};
use crate::random::RandomStream;
use crate::remote::RemoteStore;
use crate::remote_model;
use crate::running_statistics::RunningStatistics;
use crate::saved_part::{SavedPart, check_model, write_model};
use crate::state_leaf::{
    StateKind, StateLeaf, StateVisitor, StateWalk, model_specs, read_model, walk_model,
};
use crate::trace::{self, Counters, HostState, Trace};
use crate::workers::packs;
use crate::{Error, NestPath, Result, VariablePlacement, WorkerGroup};

/// What is called for each part of a value, with its path.
pub type PartVisitor<'a> = &'a mut dyn FnMut(&NestPath<'_>, &mut dyn StatePart) -> Result<()>;

/// A value that can be built once and copied to every replica.
///
/// Every burn module is one, and so are `TrainState`, numbers' and metrics' types of this crate.
/// For other structs use `#[derive(Replicate)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be copied to every replica",
    label = "a strategy's scope cannot mirror this",
    note = "derive it for a struct or enum of your own: `#[derive(Replicate)]`, or \
            `#[derive(Module, Debug)]` for a model",
    note = "a closure that can fail is for `try_scope`"
)]
pub trait Replicate: Sized {
    /// A copy for a replica on `device`. Parameters keep their ids and become leaves of their
    /// own in the autodiff graph; their storage is shared until one side is changed. Running
    /// statistics, which clones of a burn module share, are the copy's own.
    #[must_use]
    fn replicate(&self, device: &Device) -> Self;

    /// Takes over the value of another replica, keeping what is this replica's own (the sums of
    /// micro-batches that were not exchanged yet).
    fn sync_from(&mut self, primary: &Self, device: &Device) {
        *self = primary.replicate(device);
    }

    /// The value again, to be walked and read: the same tensors. What is written into it may or may
    /// not reach the value.
    #[must_use]
    fn handles(&self) -> Self {
        self.replicate(&Device::default())
    }

    /// Visits the models and training states that the value is made of, always in the same order;
    /// `path` is where the value itself is. `#[derive(Replicate)]` walks all fields.
    ///
    /// A type that says nothing here can be used by one worker, with steps that run as they are.
    ///
    /// # Errors
    /// The visitor's.
    fn walk(&mut self, path: &NestPath<'_>, visit: PartVisitor<'_>) -> Result<()> {
        visit(path, &mut Unknown(std::any::type_name::<Self>()))
    }
}

/// A part of a replicated value: a model, a training state, as strategies see it.
pub trait StatePart {
    /// Takes over the chief's tensors, when the strategy's scope has built the value on every
    /// worker. Numbers are not taken over: compute them the same way on all workers.
    ///
    /// # Errors
    /// [`Error::DifferentModels`] if a worker's value has other tensors than the chief's.
    fn take_from_chief(&mut self, workers: &WorkerGroup) -> Result<()>;

    /// Hands its tensors to the store of a strategy that has one, and takes over what the store has
    /// of them. `path` is where the part is in what the scope built.
    ///
    /// # Errors
    /// The errors of the store.
    fn attach_remote(&mut self, store: &dyn RemoteStore, path: &str) -> Result<()>;

    /// Walks its tensors, to be changed, in an order that depends on its structure alone.
    ///
    /// # Errors
    /// [`Error::NotCompilable`] for a part that cannot be captured, and the visitor's own.
    fn walk_leaves(&mut self, walk: StateWalk<'_>, visit: StateVisitor<'_>) -> Result<()>;

    /// Whether [`load`](Self::load) would accept this.
    ///
    /// # Errors
    /// The errors of `load`.
    fn check_saved(&self, saved: SavedPart<'_>) -> Result<()>;

    /// Puts back what a checkpoint has of it, in place.
    ///
    /// # Errors
    /// If the checkpoint is of another model or optimizer; the part is unchanged then.
    fn load(&mut self, saved: SavedPart<'_>) -> Result<()>;

    /// Its numbers, if it is a training state.
    fn host(&self) -> Option<HostState> {
        None
    }

    /// Tells a training state that it is part of a capture, as its `index`-th training state.
    fn enter_capture(&mut self, trace: Arc<Trace>, index: usize) {
        let _ = (trace, index);
    }

    /// Makes the change of a training state's numbers that a captured step has made, in a call that
    /// made its update or has skipped it.
    ///
    /// # Errors
    /// If the model cannot be walked.
    fn replay(&mut self, before: &Counters, after: &Counters, is_skipped: bool) -> Result<()> {
        let _ = (before, after, is_skipped);
        Ok(())
    }

    /// Takes over the newest values of what lives elsewhere, before a run that may change it.
    ///
    /// # Errors
    /// The errors of the store.
    fn refresh_remote(&mut self) -> Result<()> {
        Ok(())
    }

    /// What its steps draw random numbers by, if it is a training state whose model draws some.
    fn random_stream(&self) -> Option<RandomStream> {
        None
    }

    /// Puts its model in evaluation mode, as burn's `Module::valid` does: without autodiff, without
    /// dropout, with the running statistics. `is_captured` says that its tensors belong to
    /// a step that is captured.
    ///
    /// # Errors
    /// If the model cannot be walked.
    fn evaluate(&mut self, is_captured: bool) -> Result<()> {
        let _ = is_captured;
        Ok(())
    }

    /// A run that may change it begins.
    fn begin_run(&mut self) {}

    /// It was changed outside of a step, and follows a change of its model's structure.
    ///
    /// # Errors
    /// For a change that it cannot follow now.
    fn follow_structure(&mut self) -> Result<()> {
        Ok(())
    }

    /// Prepares it for where the strategy keeps variables, when a strategy's scope has built it.
    fn place(&mut self, placement: VariablePlacement) {
        let _ = placement;
    }

    /// Refuses to be changed by a step that is to be captured.
    ///
    /// # Errors
    /// If it has parts that only a step which runs as it is can change.
    fn check_capture(&self) -> Result<()> {
        Ok(())
    }

    /// A number that changes with every update, if the part counts them. When a run fails and all
    /// replicas report the same numbers, the copies are known to be equal still.
    fn version(&self) -> Option<u64> {
        None
    }
}

impl<M: Module> Replicate for M {
    fn replicate(&self, device: &Device) -> Self {
        RunningStatistics::of(self).own_copy(self).fork(device)
    }

    fn handles(&self) -> Self {
        self.clone()
    }

    fn walk(&mut self, path: &NestPath<'_>, visit: PartVisitor<'_>) -> Result<()> {
        visit(path, self)
    }
}

impl<M: Module> StatePart for M {
    fn take_from_chief(&mut self, workers: &WorkerGroup) -> Result<()> {
        let mut tensors = Vec::new();
        self.walk_leaves(StateWalk::Model, &mut |leaf| {
            tensors.push((leaf.path.to_string(), leaf.spec()));
            Ok(())
        })?;
        workers.check_tensors(&tensors)?;
        // Not while the model is walked: burn holds locks then, which clones of the model share.
        for pack in packs(&tensors) {
            let read = || self.read_pack(&pack);
            if let Some(values) = workers.chiefs(&tensors[pack.clone()], read)? {
                self.write_pack(&pack, values)?;
            }
        }
        Ok(())
    }

    /// Not trained, so that the initial values stay.
    fn attach_remote(&mut self, store: &dyn RemoteStore, path: &str) -> Result<()> {
        *self = remote_model::shared(self.clone(), store, path)?;
        Ok(())
    }

    fn check_saved(&self, saved: SavedPart<'_>) -> Result<()> {
        let own = model_specs(self, &RunningStatistics::of(self))?;
        check_model(own, saved.tensors)
    }

    fn load(&mut self, saved: SavedPart<'_>) -> Result<()> {
        self.check_saved(saved)?;
        let statistics = RunningStatistics::of(self);
        write_model(self, &statistics, saved.tensors)
    }

    fn walk_leaves(&mut self, walk: StateWalk<'_>, visit: StateVisitor<'_>) -> Result<()> {
        if let StateWalk::Saved = walk {
            return read_model(self, &RunningStatistics::of(self), visit);
        }
        let is_eager = matches!(walk, StateWalk::Model);
        let statistics = is_eager.then(|| RunningStatistics::of(self));
        walk_model(self, statistics.as_ref(), walk, visit)
    }

    fn evaluate(&mut self, is_captured: bool) -> Result<()> {
        *self = evaluated(self, is_captured)?;
        Ok(())
    }

    fn check_capture(&self) -> Result<()> {
        RunningStatistics::of(self).check_capture()
    }
}

/// Some tensors of a part, by their places in a walk.
trait Pack: StatePart {
    fn read_pack(&mut self, pack: &Range<usize>) -> Result<Vec<TensorData>> {
        let (mut index, mut values) = (0.., Vec::with_capacity(pack.len()));
        self.walk_leaves(StateWalk::Model, &mut |leaf| {
            if index.next().is_some_and(|index| pack.contains(&index)) {
                values.push(leaf.read()?);
            }
            Ok(())
        })?;
        Ok(values)
    }

    fn write_pack(&mut self, pack: &Range<usize>, values: Vec<TensorData>) -> Result<()> {
        let (mut index, mut values) = (0.., values.into_iter());
        self.walk_leaves(StateWalk::Model, &mut |mut leaf| {
            if index.next().is_some_and(|index| pack.contains(&index)) {
                leaf.write(values.next().ok_or_else(different_structure)?)?;
            }
            Ok(())
        })
    }
}

impl<P: StatePart + ?Sized> Pack for P {}

/// A model in evaluation mode.
pub(crate) fn evaluated<M: Module>(model: &M, is_captured: bool) -> Result<M> {
    if is_captured {
        trace::valid(model)
    } else {
        Ok(model.valid())
    }
}

/// A type without `Replicate::walk`.
struct Unknown(&'static str);

const INSTEAD: &str = "derive `Replicate` for it, or implement `Replicate::walk`";

impl StatePart for Unknown {
    fn take_from_chief(&mut self, _: &WorkerGroup) -> Result<()> {
        Err(Error::invalid(format!(
            "`{}` cannot be sent from the chief to the other workers: {INSTEAD}",
            self.0
        )))
    }

    fn attach_remote(&mut self, _: &dyn RemoteStore, _: &str) -> Result<()> {
        Err(Error::invalid(format!(
            "`{}` cannot live on parameter servers: {INSTEAD}",
            self.0
        )))
    }

    fn walk_leaves(&mut self, walk: StateWalk<'_>, _: StateVisitor<'_>) -> Result<()> {
        match walk {
            StateWalk::Model => Ok(()),
            StateWalk::Saved => Err(Error::invalid(format!(
                "`{}` cannot be saved: {INSTEAD}",
                self.0
            ))),
            _ => Err(Error::not_compilable(self.0, INSTEAD)),
        }
    }

    fn check_saved(&self, _: SavedPart<'_>) -> Result<()> {
        Err(Error::invalid(format!(
            "`{}` cannot be restored: {INSTEAD}",
            self.0
        )))
    }

    fn load(&mut self, saved: SavedPart<'_>) -> Result<()> {
        self.check_saved(saved)
    }
}

/// What strategies do with a whole value.
pub(crate) trait ReplicateExt: Replicate {
    /// Calls a function for each part, with its path.
    fn parts(
        &mut self,
        mut each: impl FnMut(&NestPath<'_>, &mut dyn StatePart) -> Result<()>,
    ) -> Result<()> {
        self.walk(&NestPath::ROOT, &mut each)
    }

    /// Calls a function for each tensor of each part, with the part's path.
    fn leaves(
        &mut self,
        walk: StateWalk<'_>,
        mut each: impl FnMut(&NestPath<'_>, StateLeaf<'_>) -> Result<()>,
    ) -> Result<()> {
        self.parts(|path, part| part.walk_leaves(walk, &mut |leaf| each(path, leaf)))
    }

    /// Calls a function for each running statistic of each part, with its path.
    fn statistics(
        &mut self,
        mut each: impl FnMut(&NestPath<'_>, &mut dyn FloatLeaf) -> Result<()>,
    ) -> Result<()> {
        self.leaves(StateWalk::Model, |path, leaf| {
            let is_statistic = leaf.kind == StateKind::Statistic;
            let tensor = leaf.value.tensor().filter(|_| is_statistic);
            let float = tensor.and_then(LeafTensor::as_float);
            float.map_or(Ok(()), |float| each(&path.field(leaf.path), float))
        })
    }

    /// The running statistics of all parts, flat, and their paths.
    fn all_statistics(&mut self) -> Result<(Vec<String>, Vec<Tensor<1>>)> {
        let (mut paths, mut values) = (Vec::new(), Vec::new());
        self.statistics(|path, statistic| {
            paths.push(path.to_string());
            values.push(statistic.flat());
            Ok(())
        })?;
        Ok((paths, values))
    }

    /// Replaces the running statistics of all parts.
    ///
    /// # Errors
    /// For another number of values, and for one of another size; nothing is replaced then.
    fn set_all_statistics(&mut self, values: Vec<Tensor<1>>) -> Result<()> {
        let (_, own) = self.all_statistics()?;
        if !own
            .iter()
            .map(Tensor::dims)
            .eq(values.iter().map(Tensor::dims))
        {
            return Err(different_structure());
        }
        let mut pairs = own.into_iter().zip(values);
        self.statistics(|_, statistic| {
            let (own, new) = pairs.next().ok_or_else(different_structure)?;
            statistic.set_flat(new.to_device(&own.device()));
            Ok(())
        })
    }

    /// The number of updates of the first training state; 0 if there is none.
    fn updates(&mut self) -> Result<u64> {
        let mut updates = None;
        self.parts(|_, part| {
            updates = updates.or_else(|| Some(part.host()?.counters.updates));
            Ok(())
        })?;
        Ok(updates.unwrap_or(0))
    }

    /// The random stream of the first part that has one.
    fn random_stream(&mut self) -> Result<Option<RandomStream>> {
        let mut stream = None;
        self.parts(|_, part| {
            stream = stream.or_else(|| part.random_stream());
            Ok(())
        })?;
        Ok(stream)
    }

    /// The parts' versions; none if one counts no updates, or there is no part.
    fn versions(&mut self) -> Option<Vec<u64>> {
        let mut versions = Vec::new();
        let walked = self.parts(|_, part| {
            versions.push(part.version());
            Ok(())
        });
        let versions: Option<Vec<u64>> = versions.into_iter().collect();
        versions.filter(|all| walked.is_ok() && !all.is_empty())
    }
}

impl<T: Replicate> ReplicateExt for T {}

/// Takes over the chief's model, if it has had as many updates.
pub(crate) fn take_state(
    workers: &WorkerGroup,
    model: &mut impl Module,
    updates: u64,
) -> Result<()> {
    let updates = ("the number of updates", updates.into());
    workers.check_equal("a training state", &[updates])?;
    StatePart::take_from_chief(model, workers)
}

#[cfg(test)]
mod tests {
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::{Device, Tensor};

    use super::ReplicateExt;
    use crate::state_leaf::StateWalk;
    use crate::{Adam, Replicate, TrainState};

    #[derive(Replicate)]
    struct Pair(Networks, u64);

    #[derive(Replicate)]
    struct Networks {
        trained: TrainState<Linear>,
        fixed: Linear,
    }

    #[test]
    fn tensors_of_parts_have_the_paths_of_their_fields() {
        let layer = || LinearConfig::new(2, 3).init(&Device::flex().autodiff());
        let networks = Networks {
            trained: TrainState::new(layer(), Adam::new(0.1)),
            fixed: layer(),
        };
        let mut pair = Pair(networks, 1);
        let (mut parts, mut leaves) = (Vec::new(), Vec::new());
        let found = pair.parts(|path, _| {
            parts.push(path.to_string());
            Ok(())
        });
        found.unwrap();
        assert_eq!(parts, ["0.trained", "0.fixed", "1"]);
        let found = pair.leaves(StateWalk::All, |path, leaf| {
            leaves.push(path.field(&leaf.label()).to_string());
            Ok(())
        });
        found.unwrap();
        let expected = [
            "0.trained.weight",
            "0.trained.bias",
            "0.trained.weight (momentum)",
            "0.trained.weight (velocity)",
            "0.trained.bias (momentum)",
            "0.trained.bias (velocity)",
            "0.fixed.weight",
            "0.fixed.bias",
        ];
        assert_eq!(leaves, expected);
    }

    #[derive(Replicate)]
    struct Norms {
        trained: TrainState<BatchNorm>,
        fixed: BatchNorm,
    }

    #[test]
    fn running_statistics_of_other_sizes_replace_none() {
        let norm = |features| BatchNormConfig::new(features).init(&Device::flex().autodiff());
        let mut norms = Norms {
            trained: TrainState::new(norm(2), Adam::new(0.1)),
            fixed: norm(3),
        };
        let sevens = |sizes: &[usize]| -> Vec<_> {
            let sizes = sizes.iter();
            let seven = |size: &usize| Tensor::<1>::full([*size], 7.0, &Device::flex());
            sizes.map(seven).collect()
        };
        let found = |norms: &mut Norms| {
            let (_, values) = norms.all_statistics().unwrap();
            Tensor::cat(values, 0).into_data()
        };
        let before = found(&mut norms);
        for sizes in [
            &[2, 2, 3, 2][..],
            &[2, 3, 3, 3],
            &[2, 2, 3],
            &[2, 2, 3, 3, 1],
            &[],
        ] {
            norms.set_all_statistics(sevens(sizes)).unwrap_err();
            assert_eq!(found(&mut norms), before, "{sizes:?}");
        }
        norms.set_all_statistics(sevens(&[2, 2, 3, 3])).unwrap();
        assert_eq!(found(&mut norms), sevens(&[10])[0].to_data());
    }
}
