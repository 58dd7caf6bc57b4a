//! One update of a model's parameters, all at once or as their gradients arrive.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::Tensor;
use tracing::trace_span;

use crate::optim::{BurnRecord, Coefficient, Optimizer, ParameterUpdate, WholeParameter};
use crate::parameters::{self, TrainedTensor};
use crate::replica::Turn;
use crate::trace::{self, CapturedTensor};
use crate::{Error, Gradients, Result};

/// The parameters of one update. Until [`put_into`](Self::put_into) the model is as it was; the
/// slots are not.
pub(super) struct Update<'a> {
    optimizer: &'a dyn Optimizer,
    coefficients: Vec<Coefficient>,
    only_if: Option<CapturedTensor>,
    /// The paths of the parameters, and their values, in visit order.
    names: &'a [String],
    parameters: Vec<Parameter>,
    updated: Vec<Option<Parameter>>,
    /// Theirs, for an optimizer of burn; of no parameter for others, which see one row.
    shapes: Vec<Vec<usize>>,
    slots: &'a mut [Vec<Tensor<1>>],
    records: &'a mut [Option<BurnRecord>],
    has_begun: bool,
}

/// The coefficients of one update: of the host, or inputs of a step that is captured.
pub(super) struct UpdateCoefficients {
    all: Vec<Coefficient>,
    is_captured: bool,
    /// Whether the program makes the update: a bool of shape `[1]`.
    only_if: Option<CapturedTensor>,
}

impl UpdateCoefficients {
    pub(super) fn of_host(numbers: Vec<f64>) -> Self {
        Self {
            all: numbers.into_iter().map(Coefficient::Host).collect(),
            is_captured: false,
            only_if: None,
        }
    }

    pub(super) fn captured(inputs: Vec<Tensor<1>>) -> Self {
        Self {
            all: inputs.into_iter().map(Coefficient::Tensor).collect(),
            is_captured: true,
            only_if: None,
        }
    }

    /// Parameters and slots stay as they are where this bool of a captured step is not set.
    pub(super) fn only_if(mut self, is_made: Option<CapturedTensor>) -> Self {
        self.only_if = is_made;
        self
    }
}

impl<'a> Update<'a> {
    /// # Errors
    /// Those of [`visit_named`], and for a model that is not the captured one, in a step that is
    /// captured.
    pub(super) fn new(
        model: &impl Module,
        (optimizer, coefficients): (&'a dyn Optimizer, UpdateCoefficients),
        names: &'a [String],
        (slots, records): (&'a mut [Vec<Tensor<1>>], &'a mut [Option<BurnRecord>]),
    ) -> Result<Self> {
        let (mut parameters, mut shapes) = (Vec::new(), Vec::new());
        visit_named(model, names, |tensor| {
            if optimizer.burn().is_some() {
                shapes.push(tensor.spec().shape);
            }
            parameters.push(match coefficients.is_captured {
                false => Parameter::Here(Box::new(tensor.flat())),
                true => Parameter::Captured(tensor.captured().ok_or_else(foreign)?),
            });
            Ok(())
        })?;
        Ok(Self {
            optimizer,
            coefficients: coefficients.all,
            only_if: coefficients.only_if,
            updated: vec![None; parameters.len()],
            names,
            parameters,
            shapes,
            slots,
            records,
            has_begun: false,
        })
    }

    /// The number of trainable parameters.
    pub(super) fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Whether slots may have been changed.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Updates the parameters of a range in visit order, with gradients that are reduced already.
    pub(super) fn apply(&mut self, range: Range<usize>, gradients: &mut Gradients) -> Result<()> {
        range
            .into_iter()
            .try_for_each(|index| self.apply_one(index, gradients))
    }

    /// [`apply`](Self::apply) of a replica that may share its device with others: one of them
    /// computes the new tensors, and the others take handles of them. Mirrored states hold the same
    /// bits, so each would compute the same.
    pub(super) fn apply_with(
        &mut self,
        turn: Option<&Turn>,
        range: Range<usize>,
        gradients: &mut Gradients,
    ) -> Result<()> {
        let parameters = range.len();
        let span = trace_span!(target: "distribute::phase", "update", parameters);
        let _phase = span.entered();
        let Some(turn) = turn else {
            return self.apply(range, gradients);
        };
        let key = (range.clone(), self.identity());
        let new = turn.once(key, || {
            self.apply(range.clone(), gradients)?;
            let new = |index: usize| {
                let kept = (self.slots[index].clone(), self.records[index].clone());
                (self.updated[index].clone(), kept)
            };
            Ok::<_, Error>(range.clone().map(new).collect::<Vec<_>>())
        })?;
        for (index, (parameter, (slots, record))) in range.zip(new.iter()) {
            self.has_begun |= parameter.is_some();
            self.updated[index].clone_from(parameter);
            self.slots[index].clone_from(slots);
            self.records[index].clone_from(record);
        }
        Ok(())
    }

    /// What two updates of the same mirrored state have in common: where its rule and its names
    /// are, which its copies share, and the coefficients.
    fn identity(&self) -> (usize, usize, Vec<u64>) {
        let rule = std::ptr::from_ref(self.optimizer).cast::<()>().addr();
        let coefficients = self.coefficients.iter().map(|number| match number {
            Coefficient::Host(number) => number.to_bits(),
            Coefficient::Tensor(_) => 0,
        });
        (rule, self.names.as_ptr().addr(), coefficients.collect())
    }

    fn apply_one(&mut self, index: usize, gradients: &mut Gradients) -> Result<()> {
        if !gradients.is_present(index) {
            return Ok(());
        }
        self.has_begun = true;
        let parameter = self.parameters[index].flat();
        let device = parameter.device();
        let Some(gradient) = gradients.take_flat(index, &device)? else {
            return Ok(());
        };
        let dtype = parameter.dtype();
        let mut slots = std::mem::take(&mut self.slots[index]);
        if slots.is_empty() {
            slots = self.optimizer.new_slots(&parameter);
        }
        let coefficients = Coefficient::of_type(&self.coefficients, dtype);
        let before = self
            .only_if
            .is_some()
            .then(|| (parameter.clone(), slots.clone()));
        let (mut parameter, mut slots) = self.optimizer.update(ParameterUpdate {
            path: &self.names[index],
            coefficients: &coefficients,
            parameter,
            gradient,
            slots,
            whole: self.shapes.get(index).map(|shape| WholeParameter {
                shape,
                record: &mut self.records[index],
            }),
        })?;
        if let (Some(is_made), Some((old, old_slots))) = (&self.only_if, before) {
            parameter = choose(is_made, &parameter, &old)?;
            for (slot, old) in slots.iter_mut().zip(&old_slots) {
                *slot = choose(is_made, slot, old)?;
            }
        }
        self.slots[index] = slots;
        self.updated[index] = Some(self.parameters[index].with(parameter)?);
        Ok(())
    }

    /// The model with the updated parameters.
    pub(super) fn put_into<M: Module>(self, model: M) -> Result<M> {
        // The old values go before the new ones are put in.
        drop(self.parameters);
        let mut updated = self.updated.into_iter();
        parameters::map(model, |parameter: parameters::Parameter<'_>| {
            if let Some(tensor) = parameter.tensor.trained() {
                match updated.next().flatten() {
                    Some(Parameter::Here(flat)) => tensor.set_flat(*flat),
                    Some(Parameter::Captured(captured)) => {
                        tensor.bind(captured, tensor.tracking());
                    }
                    None => {}
                }
            }
            Ok(())
        })
    }
}

/// A trainable parameter and its value.
#[derive(Clone)]
enum Parameter {
    /// Flattened, in the memory where it is. In a box: with the backend of GPUs in the build a
    /// tensor is six times as large as a captured one.
    Here(Box<Tensor<1>>),
    /// A tensor of the step that is captured.
    Captured(CapturedTensor),
}

impl Parameter {
    fn flat(&self) -> Tensor<1> {
        match self {
            Self::Here(tensor) => Tensor::clone(tensor),
            Self::Captured(tensor) => tensor.flat(),
        }
    }

    /// The same parameter with another value.
    fn with(&self, flat: Tensor<1>) -> Result<Self> {
        let Self::Captured(old) = self else {
            return Ok(Self::Here(Box::new(flat)));
        };
        let new = trace::captured(&flat).ok_or_else(foreign)?;
        Ok(Self::Captured(new.reshaped(&old.spec().shape)))
    }
}

/// Visits the parameters that are trained, in visit order. They are those that were trained when
/// the training state was made, whose slots are in that order.
///
/// # Errors
/// [`Error::InvalidArgument`] if a layer was frozen or unfrozen since, with the first parameter.
pub(super) fn visit_named(
    model: &impl Module,
    names: &[String],
    mut each: impl FnMut(&mut dyn TrainedTensor) -> Result<()>,
) -> Result<()> {
    let mut known = names.iter();
    let other = |name: &str, now: &str, before: &str| {
        Err(Error::invalid(format!(
            "the parameter `{name}` is {now}, and was {before} when the training state was made; \
             freeze and unfreeze layers before `TrainState::new`, or make a new state of the model"
        )))
    };
    let frozen = |name: &str| other(name, "frozen", "trained");
    parameters::visit_trained(model, |_, path, tensor| match known.next() {
        Some(name) if name == path => each(tensor),
        Some(name) if names.iter().any(|name| name == path) => frozen(name),
        _ => other(path, "trained", "frozen"),
    })?;
    known.next().map_or(Ok(()), |name| frozen(name))
}

/// The new value if the update is made, else the old one.
fn choose(is_made: &CapturedTensor, new: &Tensor<1>, old: &Tensor<1>) -> Result<Tensor<1>> {
    let of = |tensor| trace::captured(tensor).ok_or_else(foreign);
    Ok(trace::choose(is_made, &of(new)?, &of(old)?).float())
}

fn foreign() -> Error {
    let instead = "update it with tensors of the step";
    Error::not_compilable("a parameter that is not one of the captured state", instead)
}
