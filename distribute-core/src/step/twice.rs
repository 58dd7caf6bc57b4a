//! Whether a step is the same each time it is captured.
//!
//! What the host draws while a step is captured becomes a constant of the program: the same numbers
//! in every step and on every replica. A stream of the replica says so itself
//! ([`Trace::check`](crate::trace::Trace::check)). Other generators cannot
//! be seen, but their numbers can: a new step is captured twice for the same arguments, and a
//! literal that differs was not computed from them.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::burn_internals::capture::TensorId;
use crate::burn_internals::ir::OperationIr;
use crate::burn_internals::{name, without_numbers_of_tensors};

use super::digest::computing;
use crate::trace::{CapturedStep, NewProgram, ResultLeaf, StepProgram, TensorSpec};
use crate::{Error, Result};

/// # Errors
/// [`Error::RandomOnHost`] if two captures of one step have other literals or other operations. The
/// order of operations is no difference: a step may iterate over a `HashMap`.
pub(crate) fn compare(first: &NewProgram, second: &NewProgram) -> Result<()> {
    if first.program.digest == second.program.digest {
        return Ok(());
    }
    let random = |what: String| Err(Error::RandomOnHost { what });
    if first.program.seed != second.program.seed {
        let what = "the seed of a `dropout`, from a generator that goes on from call to call: give \
                    it `ctx.rng(seed, step)`";
        return random(what.to_string());
    }
    let (once, again) = (Described::all(&first.step), Described::all(&second.step));
    let mut sorted = [&once, &again].map(|all| all.iter().map(Described::key).collect::<Vec<_>>());
    sorted.iter_mut().for_each(|keys| keys.sort_unstable());
    if sorted[0] == sorted[1] {
        return handed_over(&first.program, &second.program);
    }
    let mut pairs = once.iter().zip(&again).enumerate();
    let differing = pairs.find(|(_, (one, other))| one.key() != other.key());
    let Some((number, (one, other))) = differing else {
        return random(format!(
            "how many operations it makes ({} and {} in two captures)",
            once.len(),
            again.len()
        ));
    };
    let near = nearest_parameter(&first.step, one.position);
    let near = near.map_or(String::new(), |name| format!(" behind `{name}`"));
    random(match (one.text == other.text, one.name == other.name) {
        (true, _) => format!(
            "the constant {} of the operation {}{near} (operation {number} of the step)",
            one.constant, one.name
        ),
        (_, true) => format!(
            "a number of the operation {}{near} (operation {number} of the step)",
            one.name
        ),
        _ => format!(
            "which operations it makes ({} or {}{near}, operation {number} of the step)",
            one.name, other.name
        ),
    })
}

/// Compares the numbers of the host that a step gives to metrics and variables.
fn handed_over(first: &StepProgram, second: &StepProgram) -> Result<()> {
    let given = |program: &StepProgram| -> Vec<ResultLeaf> {
        let effects = &program.host_side().effects;
        let leaves = effects.iter().flat_map(|effect| effect.leaves.iter());
        leaves.cloned().collect()
    };
    let same = |(one, other): (&ResultLeaf, &ResultLeaf)| match (one, other) {
        // Outputs of the graph have other places in it where the order of operations differs.
        (ResultLeaf::Output(_), ResultLeaf::Output(_)) => true,
        _ => one == other,
    };
    let (first, second) = (given(first), given(second));
    if first.len() == second.len() && first.iter().zip(&second).all(same) {
        Ok(())
    } else {
        Err(Error::RandomOnHost {
            what: "a number that it gives to a metric or a variable".to_string(),
        })
    }
}

/// An operation without what differs between two captures of the same step.
struct Described {
    /// Where it is in the graph.
    position: usize,
    name: String,
    text: String,
    /// Of the values of its constants.
    constants: u64,
    /// The first of its constants.
    constant: String,
}

impl Described {
    /// What the operation computes.
    fn key(&self) -> (&str, u64) {
        (&self.text, self.constants)
    }

    fn all(step: &CapturedStep) -> Vec<Self> {
        computing(step)
            .map(|(position, operation)| Self::new(step, position, operation))
            .collect()
    }

    fn new(step: &CapturedStep, position: usize, operation: &OperationIr) -> Self {
        let mut hash = DefaultHasher::new();
        let mut constant = String::new();
        for tensor in operation.inputs() {
            // The key of random numbers is a constant only by name.
            let is_key = step.random_key == Some(tensor.id);
            let value = step.graph.values.get(&tensor.id).filter(|_| !is_key);
            if let Some(data) = value {
                data.as_bytes().hash(&mut hash);
                if constant.is_empty() {
                    constant = TensorSpec::of(data).to_string();
                }
            }
        }
        Self {
            position,
            name: name(operation),
            text: without_numbers_of_tensors(operation),
            constants: hash.finish(),
            constant,
        }
    }
}

/// The nearest parameter that the operation's inputs are computed from.
fn nearest_parameter(step: &CapturedStep, position: usize) -> Option<String> {
    let names = step.inputs.iter().filter(|input| !input.name.is_empty());
    let names: HashMap<TensorId, &str> =
        names.map(|input| (input.id, input.name.as_str())).collect();
    let operations = &step.graph.graph.operations;
    let mut made_by: HashMap<TensorId, usize> = HashMap::new();
    for (number, operation) in operations.iter().enumerate() {
        made_by.extend(operation.outputs().map(|tensor| (tensor.id, number)));
    }
    let mut seen: HashSet<usize> = HashSet::new();
    let mut next = std::collections::VecDeque::from([position]);
    while let Some(number) = next.pop_front() {
        for tensor in operations.get(number)?.inputs() {
            if let Some(name) = names.get(&tensor.id) {
                return Some((*name).to_string());
            }
            let maker = made_by.get(&tensor.id);
            next.extend(maker.filter(|maker| seen.insert(**maker)));
        }
    }
    None
}
