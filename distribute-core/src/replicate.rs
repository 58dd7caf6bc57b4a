//! Values that are copied to every replica, and the parts that they are made of.

use std::collections::VecDeque;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::remote::{self, RemoteStore};
use crate::running_statistics::{self, RunningStatistics};
use crate::trace::{self, HostState};
use crate::{
    Error, Leaf, LeafVisitor, NestPath, Result, VariablePlacement, WorkerGroup, module_tensors,
};

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
    /// Those of the store.
    fn attach_remote(&mut self, store: &dyn RemoteStore, path: &str) -> Result<()>;

    /// Walks its tensors, for a strategy that compiles steps, in an order that depends on its
    /// structure alone. `capture` is where a model's constants go, if tensors of a capture are put
    /// in.
    ///
    /// # Errors
    /// [`Error::NotCompilable`] for a part that cannot be captured, and the visitor's own.
    fn walk_leaves(
        &mut self,
        path: &NestPath<'_>,
        capture: Option<&Device>,
        visit: LeafVisitor<'_>,
    ) -> Result<()>;

    /// Its numbers, if it is a training state.
    fn host(&mut self) -> Option<&mut dyn HostState> {
        None
    }

    /// Takes over the newest values of what lives elsewhere, before a run that may change it.
    ///
    /// # Errors
    /// Those of the store.
    fn refresh_remote(&mut self) -> Result<()> {
        Ok(())
    }

    /// A run that may change it begins.
    fn begin_run(&mut self) {}

    /// Prepares it for where the strategy keeps variables, when a strategy's scope has built it.
    fn place(&mut self, placement: VariablePlacement) {
        let _ = placement;
    }

    /// Its running statistics (the moving statistics of a batch normalization) and their paths:
    /// flat, in an order that depends on its structure alone. Each replica has its own, and outside
    /// of steps they are read as the mean over the replicas.
    fn running_statistics(&self) -> Vec<(String, Tensor<1>)> {
        Vec::new()
    }

    /// Takes as many values from the front as it has running statistics.
    ///
    /// # Errors
    /// If there are fewer, or of other sizes.
    fn set_running_statistics(&mut self, values: &mut VecDeque<Tensor<1>>) -> Result<()> {
        let _ = values;
        Ok(())
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

    fn walk(&mut self, path: &NestPath<'_>, visit: PartVisitor<'_>) -> Result<()> {
        visit(path, self)
    }
}

impl<M: Module> StatePart for M {
    fn take_from_chief(&mut self, workers: &WorkerGroup) -> Result<()> {
        running_statistics::settle(self);
        let found = module_tensors::take(self)?.into_iter();
        let found = found.map(|tensor| (tensor.path, tensor.value));
        let (paths, mut tensors): (Vec<_>, Vec<_>) = found.unzip();
        workers.take_from_chief(&paths, &mut tensors)?;
        *self = module_tensors::put(self.clone(), tensors.into_iter().map(Some))?;
        Ok(())
    }

    /// Not trained, so that the initial values stay.
    fn attach_remote(&mut self, store: &dyn RemoteStore, path: &str) -> Result<()> {
        *self = remote::shared(self.clone(), store, path)?;
        Ok(())
    }

    fn walk_leaves(
        &mut self,
        path: &NestPath<'_>,
        capture: Option<&Device>,
        visit: LeafVisitor<'_>,
    ) -> Result<()> {
        trace::walk_module(self, capture, |name, leaf| visit(&path.field(name), leaf))
    }

    fn running_statistics(&self) -> Vec<(String, Tensor<1>)> {
        RunningStatistics::of(self).named(self)
    }

    fn set_running_statistics(&mut self, values: &mut VecDeque<Tensor<1>>) -> Result<()> {
        RunningStatistics::of(self).take(self, values)
    }

    fn check_capture(&self) -> Result<()> {
        RunningStatistics::of(self).check_capture()
    }
}

/// A value of this type, of which nobody knows what it is made of.
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

    fn walk_leaves(
        &mut self,
        _: &NestPath<'_>,
        _: Option<&Device>,
        _: LeafVisitor<'_>,
    ) -> Result<()> {
        Err(Error::not_compilable(self.0, INSTEAD))
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

    /// Calls a function for each tensor of each part, see [`StatePart::walk_leaves`].
    fn leaves(
        &mut self,
        capture: Option<&Device>,
        mut each: impl FnMut(&NestPath<'_>, &mut dyn Leaf) -> Result<()>,
    ) -> Result<()> {
        self.parts(|path, part| part.walk_leaves(path, capture, &mut each))
    }

    /// The running statistics of all parts, and their paths.
    fn all_statistics(&mut self) -> Result<(Vec<String>, Vec<Tensor<1>>)> {
        let (mut paths, mut values) = (Vec::new(), Vec::new());
        self.parts(|path, part| {
            for (name, value) in part.running_statistics() {
                paths.push(path.field(&name).to_string());
                values.push(value);
            }
            Ok(())
        })?;
        Ok((paths, values))
    }

    /// Replaces the running statistics of all parts.
    fn set_all_statistics(&mut self, values: Vec<Tensor<1>>) -> Result<()> {
        let mut values = VecDeque::from(values);
        self.parts(|_, part| part.set_running_statistics(&mut values))
    }

    /// The number of updates of the first training state; 0 if there is none.
    fn updates(&mut self) -> Result<u64> {
        let mut updates = None;
        self.parts(|_, part| {
            let record = part.host().map(|host| host.record());
            updates = updates.or(record.and_then(|record| record.first().copied()));
            Ok(())
        })?;
        Ok(updates.unwrap_or(0))
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
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    use super::ReplicateExt;
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
        let found = pair.leaves(None, |path, _| {
            leaves.push(path.to_string());
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
}
