//! Gradients that are not the same when other replicas compute them again.

use std::fmt;

/// The gradients of a replica are not the same when other replicas compute them again: a
/// processor, or memory, of one of them has made an error, in the gradients, the batch or the
/// parameters. Inside [`Error::WrongGradient`](crate::Error::WrongGradient).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrongGradient {
    /// The update that was not made, from 1.
    pub step: u64,
    /// The replica whose gradients were checked.
    pub checked: usize,
    /// The replicas that have computed them: that one first.
    pub computed_by: Vec<usize>,
    /// Those whose result is not that of most; all of them, where there is no majority.
    pub replicas: Vec<usize>,
    /// The rank (worker) of each of these.
    pub ranks: Vec<usize>,
    /// The host of each of these.
    pub hosts: Vec<String>,
    /// Whether two of three results are equal.
    pub has_majority: bool,
    /// The path of the first parameter whose gradient differs.
    pub parameter: String,
}

impl fmt::Display for WrongGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.replicas.iter().zip(&self.ranks).zip(&self.hosts);
        let named =
            named.map(|((id, rank), host)| format!("replica {id} (rank {rank}, host {host})"));
        let named: Vec<String> = named.collect();
        let (checked, step) = (self.checked, self.step);
        let by: Vec<String> = self.computed_by.iter().map(usize::to_string).collect();
        let by = by.join(", ");
        write!(
            f,
            "the gradients of replica {checked} in step {step} were computed by the replicas {by}, \
             and are not the same: "
        )?;
        match (self.has_majority, &named[..]) {
            (true, [one]) => write!(f, "{one} differs from the others")?,
            _ => write!(
                f,
                "{} differ from each other, and which one is wrong is not known",
                named.join(" and ")
            )?,
        }
        write!(
            f,
            "; the first difference is in `{}`. The update was not made, and nothing was saved: \
             start the job again from the last checkpoint, as `launch --max-restarts` does, and \
             test memory and processor of the host. A bit has changed in a batch, weights or \
             gradients; if it comes again at once, the step is not the same each time it is \
             computed (random numbers that are not the replica's, a changing closure), or the \
             processes compute differently (run the same build on equal processors)",
            self.parameter
        )
    }
}

impl std::error::Error for WrongGradient {}
