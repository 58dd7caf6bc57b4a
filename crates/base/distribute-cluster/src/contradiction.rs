//! Two launchers whose variables cannot both be about this process.
//!
//! Launchers are nested on purpose: `mpirun` starts one torchrun on each host, which starts the
//! processes. Then the inner ones count at least as many processes as the outer ones, a multiple if
//! all hosts have equally many. What is left over of another launcher, or an inner launcher that is
//! passed over for the outer one (`mpirun` inside of torchrun), does not fit this. It would start
//! several processes as the same rank, or each of them alone on all data.

use super::environment::Variables;
use super::launchers::{self, Launcher, OPEN_MPI, TORCHRUN};
use super::{ClusterError, ClusterKind, MAX_TASKS};

/// Rank and size that a launcher says.
struct Numbers {
    kind: ClusterKind,
    launcher: Launcher,
    rank: usize,
    size: usize,
}

impl Numbers {
    /// `None` where they are not both there and valid: what is wrong with them is an error of the
    /// one who reads them.
    fn read(kind: ClusterKind, env: &Variables) -> Option<Self> {
        let launcher = match kind {
            ClusterKind::Torchrun => TORCHRUN,
            ClusterKind::OpenMpi => OPEN_MPI,
            ClusterKind::Mpi => launchers::other(env)?,
            _ => return None,
        };
        let number = |name| env.number(&[name], MAX_TASKS).ok().flatten();
        let (rank, size) = (number(launcher.rank)?, number(launcher.size)?);
        (rank < size).then_some(Self {
            kind,
            launcher,
            rank,
            size,
        })
    }

    fn text(&self) -> String {
        let Self { rank, size, .. } = self;
        format!(
            "{}={rank} and {}={size}",
            self.launcher.rank, self.launcher.size
        )
    }

    /// Whether each process of the other launcher can have started some of these.
    fn can_be_within(&self, other: &Self, env: &Variables) -> bool {
        // torchrun says how many of it there are, of which each may start any number, and gives
        // them ranks of its own.
        let agents = env.number(&["GROUP_WORLD_SIZE"], MAX_TASKS).ok().flatten();
        let is_torchrun = self.kind == ClusterKind::Torchrun && env.has("TORCHELASTIC_RUN_ID");
        if is_torchrun && agents == Some(other.size) {
            return true;
        }
        let is_multiple = self.size.checked_rem(other.size) == Some(0);
        let is_the_same = self.size == other.size && self.rank == other.rank;
        is_multiple && (self.size > other.size || is_the_same)
    }
}

/// The launcher whose numbers contradict the chosen one's.
pub(super) fn find(chosen: ClusterKind, env: &Variables) -> Option<ClusterError> {
    let own = Numbers::read(chosen, env)?;
    let others = [ClusterKind::OpenMpi, ClusterKind::Mpi];
    let others = others.into_iter().filter(|kind| *kind != chosen);
    let other = others
        .filter_map(|kind| Numbers::read(kind, env))
        .find(|other| !own.can_be_within(other, env))?;
    Some(ClusterError::ContradictingLaunchers {
        first: own.text(),
        first_name: own.kind,
        second: other.text(),
        second_name: other.kind,
    })
}
