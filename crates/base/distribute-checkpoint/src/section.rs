//! The names of tensors in a checkpoint: they are built and read here alone.

use std::fmt::Display;

/// A section of a checkpoint: what the first word of a tensor's name says of it.
///
/// ```
/// use distribute_checkpoint::Section;
///
/// assert_eq!(Section::Model.name("fc.weight"), "model/fc.weight");
/// let name = Section::Optimizer.name_in("momentum", "fc.weight");
/// assert_eq!(name, "optimizer/momentum/fc.weight");
/// assert_eq!(Section::Optimizer.parts_of(&name), Some(("momentum", "fc.weight")));
/// assert_eq!(Section::replica_of("statistics/3/norm.running_mean"), Some(3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Section {
    /// A tensor of the model, by its path; of a running statistic the mean over the replicas.
    Model,
    /// What an optimizer keeps for a parameter: the slot, and the parameter's path.
    Optimizer,
    /// What an optimizer of burn keeps for a parameter: the part of its record, and the path.
    OptimizerRecord,
    /// A number of a dynamic loss scale, by its name.
    LossScale,
    /// A replica's sum of the gradients of micro-batches: the replica, and the parameter's path.
    Accumulated,
    /// A replica's own running statistic: the replica, and the path.
    Statistics,
    /// What a callback keeps: the callback, and the name of its tensor.
    Callback,
    /// The number of updates of an embedding table, by the table's name.
    Updates,
}

impl Section {
    /// What stands before the first slash, and that slash.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Model => "model/",
            Self::Optimizer => "optimizer/",
            Self::OptimizerRecord => "optimizer_record/",
            Self::LossScale => "loss_scale/",
            Self::Accumulated => "accumulated/",
            Self::Statistics => "statistics/",
            Self::Callback => "callback/",
            Self::Updates => "updates/",
        }
    }

    /// The name of a tensor of this section.
    pub fn name(self, path: &str) -> String {
        format!("{}{path}", self.prefix())
    }

    /// The name of a tensor of a part of this section: of a slot, a replica, a callback.
    pub fn name_in(self, part: impl Display, path: &str) -> String {
        format!("{}{part}/{path}", self.prefix())
    }

    /// Whether a tensor of this name is in the section.
    pub fn has(self, name: &str) -> bool {
        name.starts_with(self.prefix())
    }

    /// The path of a tensor of this section.
    pub fn path_of(self, name: &str) -> Option<&str> {
        name.strip_prefix(self.prefix())
    }

    /// The part and the path of a tensor of this section, if it has both. A part has no slash.
    pub fn parts_of(self, name: &str) -> Option<(&str, &str)> {
        self.path_of(name)?.split_once('/')
    }

    /// The replica whose own a tensor is; `None` for what all replicas have alike.
    pub fn replica_of(name: &str) -> Option<usize> {
        let own = [Self::Accumulated, Self::Statistics];
        let (replica, _) = own.iter().find_map(|section| section.parts_of(name))?;
        replica.parse().ok()
    }
}
