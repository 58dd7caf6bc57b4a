//! One update of a model's parameters, all at once or as their gradients arrive.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::Tensor;
use tracing::trace_span;

use super::TrainState;
use super::placement::{Slots, visit_named};
use crate::optim::{Coefficient, ParameterUpdate, WholeParameter};
use crate::parameters;
use crate::replica::Turn;
use crate::trace::{self, CapturedTensor};
use crate::{Error, Gradients, Result};

/// The numbers of one update.
pub(super) struct Numbers {
    pub(super) coefficients: Vec<Coefficient>,
    /// Whether the update is one of a step that is captured; the coefficients are inputs then.
    pub(super) is_captured: bool,
    /// Whether the program makes that update: a bool of shape `[1]`.
    pub(super) only_if: Option<CapturedTensor>,
}

/// The parameters of one update. Until [`finish`](Self::finish) the model is as it was; the slots
/// are not.
pub(super) struct Update<'a, M> {
    pub(super) state: &'a mut TrainState<M>,
    slots: &'a mut Slots,
    numbers: Numbers,
    /// The values of the parameters, in visit order.
    parameters: Vec<Parameter>,
    updated: Vec<Option<Parameter>>,
    /// Their shapes, for an optimizer of burn; of no parameter for others, which see one row.
    shapes: Vec<Vec<usize>>,
    /// Whether slots may have been changed.
    pub(super) has_begun: bool,
}

impl<'a, M: Module> Update<'a, M> {
    /// With coefficients of the host, or inputs of the step that is captured: parameters and slots
    /// stay as they are where `only_if` is not set.
    ///
    /// # Errors
    /// The errors of [`visit_named`], and for a model that is not the captured one, in a step that
    /// is captured.
    pub(super) fn new(
        state: &'a mut TrainState<M>,
        numbers: Numbers,
        slots: &'a mut Slots,
    ) -> Result<Self> {
        if state.step == 0 {
            state
                .optimizer
                .check_parameters(&all_names(&state.model)?)?;
        }
        let (mut parameters, mut shapes) = (Vec::new(), Vec::new());
        visit_named(&state.model, &state.names, |tensor| {
            if state.optimizer.burn().is_some() {
                shapes.push(tensor.spec().shape);
            }
            parameters.push(if numbers.is_captured {
                Parameter::Captured(tensor.captured().ok_or_else(foreign)?)
            } else {
                Parameter::Here(Box::new(tensor.flat()))
            });
            Ok(())
        })?;
        Ok(Self {
            state,
            slots,
            numbers,
            updated: vec![None; parameters.len()],
            parameters,
            shapes,
            has_begun: false,
        })
    }

    /// The number of trainable parameters.
    pub(super) fn len(&self) -> usize {
        self.parameters.len()
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
            let parameters = self.updated[range.clone()].to_vec();
            Ok::<_, Error>((parameters, self.slots.part(range.clone())))
        })?;
        let (parameters, slots) = &*new;
        self.has_begun |= parameters.iter().any(Option::is_some);
        self.updated[range.clone()].clone_from_slice(parameters);
        self.slots.set(range, slots.clone());
        Ok(())
    }

    /// What two updates of the same mirrored state have in common: where its rule and its names
    /// are, which its copies share, and the coefficients.
    fn identity(&self) -> (usize, usize, Vec<u64>) {
        let state = &*self.state;
        let rule = std::ptr::from_ref(&*state.optimizer).cast::<()>().addr();
        let coefficients = self.numbers.coefficients.iter().map(|number| match number {
            Coefficient::Host(number) => number.to_bits(),
            Coefficient::Tensor(_) => 0,
        });
        (rule, state.names.as_ptr().addr(), coefficients.collect())
    }

    fn apply_one(&mut self, index: usize, gradients: &mut Gradients) -> Result<()> {
        match self.apply_part(index, None, gradients)? {
            Some(updated) => self.put(index, updated),
            None => Ok(()),
        }
    }

    /// What these elements of a parameter, or all, become, with the slots of them; `None` without
    /// a gradient.
    pub(super) fn apply_part(
        &mut self,
        index: usize,
        part: Option<Range<usize>>,
        gradients: &mut Gradients,
    ) -> Result<Option<Tensor<1>>> {
        let Some(gradient) = gradients.take(index) else {
            return Ok(None);
        };
        self.has_begun = true;
        let parameter = self.parameters[index].flat();
        let gradient = gradient.into_flat(&parameter.device())?;
        let [parameter, gradient] = match part {
            Some(part) => [parameter, gradient].map(|tensor| tensor.slice(part.clone())),
            None => [parameter, gradient],
        };
        let dtype = parameter.dtype();
        let state = &mut *self.state;
        let mut slots = self.slots.take(index);
        if slots.is_empty() {
            slots = state.optimizer.new_slots(&parameter);
        }
        let coefficients = Coefficient::of_type(&self.numbers.coefficients, dtype);
        let only_if = self.numbers.only_if.as_ref();
        let before = only_if.map(|is_made| (is_made, parameter.clone(), slots.clone()));
        let (mut parameter, mut slots) = state.optimizer.update(ParameterUpdate {
            path: &state.names[index],
            coefficients: &coefficients,
            parameter,
            gradient,
            slots,
            whole: self.shapes.get(index).map(|shape| WholeParameter {
                shape,
                record: &mut self.slots.records[index],
            }),
        })?;
        if let Some((is_made, old, old_slots)) = before {
            parameter = choose(is_made, &parameter, &old)?;
            for (slot, old) in slots.iter_mut().zip(&old_slots) {
                *slot = choose(is_made, slot, old)?;
            }
        }
        self.slots.tensors[index] = slots;
        Ok(Some(parameter))
    }

    /// Notes what a parameter becomes.
    pub(super) fn put(&mut self, index: usize, updated: Tensor<1>) -> Result<()> {
        self.updated[index] = Some(self.parameters[index].with(updated)?);
        Ok(())
    }

    /// Puts the updated parameters into the model.
    pub(super) fn finish(self) -> Result<()> {
        // The old values go before the new ones are put in.
        drop(self.parameters);
        let mut updated = self.updated.into_iter();
        let model = self.state.model.clone();
        self.state.model = parameters::map(model, |parameter: parameters::Parameter<'_>| {
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
        })?;
        Ok(())
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

/// The paths of all parameters, of frozen ones too.
pub(super) fn all_names(model: &impl Module) -> Result<Vec<String>> {
    let mut names = Vec::new();
    parameters::visit(model, |parameter: parameters::Parameter<'_>| {
        names.push(parameter.path.to_string());
        Ok(())
    })?;
    Ok(names)
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
