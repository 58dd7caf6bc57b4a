//! One update of a model's parameters, all at once or as their gradients arrive.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::Tensor;

use crate::optim::{Coefficient, Optimizer, ParameterUpdate};
use crate::parameters::{self, TrainedTensor};
use crate::trace::{self, CapturedTensor};
use crate::{Error, Gradients, Result};

/// The parameters of one update. Until [`put_into`](Self::put_into) the model is as it was; the
/// slots are not.
pub(super) struct Update<'a> {
    optimizer: &'a dyn Optimizer,
    coefficients: Vec<Coefficient>,
    /// The paths of the parameters, and their values, in visit order.
    names: &'a [String],
    parameters: Vec<Parameter>,
    updated: Vec<Option<Parameter>>,
    slots: &'a mut [Vec<Tensor<1>>],
    has_begun: bool,
}

/// The coefficients of one update: of the host, or inputs of a step that is captured.
pub(super) struct UpdateCoefficients {
    all: Vec<Coefficient>,
    is_captured: bool,
}

impl UpdateCoefficients {
    pub(super) fn of_host(numbers: Vec<f64>) -> Self {
        Self {
            all: numbers.into_iter().map(Coefficient::Host).collect(),
            is_captured: false,
        }
    }

    pub(super) fn captured(inputs: Vec<Tensor<1>>) -> Self {
        Self {
            all: inputs.into_iter().map(Coefficient::Tensor).collect(),
            is_captured: true,
        }
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
        slots: &'a mut [Vec<Tensor<1>>],
    ) -> Result<Self> {
        let mut parameters = Vec::new();
        visit_named(model, names, |tensor| {
            parameters.push(match coefficients.is_captured {
                false => Parameter::Here(Box::new(tensor.flat())),
                true => Parameter::Captured(tensor.captured().ok_or_else(foreign)?),
            });
            Ok(())
        })?;
        Ok(Self {
            optimizer,
            coefficients: coefficients.all,
            updated: vec![None; parameters.len()],
            names,
            parameters,
            slots,
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
        let (parameter, slots) = self.optimizer.update(ParameterUpdate {
            path: &self.names[index],
            coefficients: &coefficients,
            parameter,
            gradient,
            slots,
        })?;
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

fn foreign() -> Error {
    let instead = "update it with tensors of the step";
    Error::not_compilable("a parameter that is not one of the captured state", instead)
}
