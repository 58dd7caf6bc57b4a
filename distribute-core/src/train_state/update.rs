//! One update of a model's parameters, all at once or as their gradients arrive.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::optim::{Coefficient, Optimizer};
use crate::{Gradients, Result};

/// The parameters of one update. Until [`put_into`](Self::put_into) the model is as it was; the
/// slots are not.
pub(super) struct Update<'a> {
    optimizer: &'a dyn Optimizer,
    coefficients: Vec<Coefficient>,
    /// Flattened, in visit order.
    parameters: Vec<Tensor<1>>,
    updated: Vec<Option<Tensor<1>>>,
    slots: &'a mut [Vec<Tensor<1>>],
}

impl<'a> Update<'a> {
    pub(super) fn new(
        model: &impl Module,
        optimizer: &'a dyn Optimizer,
        coefficients: &[f64],
        slots: &'a mut [Vec<Tensor<1>>],
    ) -> Self {
        let mut parameters = Parameters::default();
        model.visit(&mut parameters);
        let host = coefficients.iter().copied().map(Coefficient::Host);
        Self {
            optimizer,
            coefficients: host.collect(),
            updated: vec![None; parameters.found.len()],
            parameters: parameters.found,
            slots,
        }
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

    fn apply_one(&mut self, index: usize, gradients: &mut Gradients) -> Result<()> {
        let parameter = &self.parameters[index];
        let Some(gradient) = gradients.take_flat(index, parameter)? else {
            return Ok(());
        };
        let mut slots = std::mem::take(&mut self.slots[index]);
        if slots.is_empty() {
            let zeros = || {
                let options = (&parameter.device(), parameter.dtype());
                Tensor::zeros(parameter.shape(), options)
            };
            slots = self.optimizer.slots().iter().map(|_| zeros()).collect();
        }
        let parameter = parameter.clone();
        let (parameter, slots) =
            self.optimizer
                .update(&self.coefficients, parameter, gradient, slots)?;
        self.slots[index] = slots;
        self.updated[index] = Some(parameter);
        Ok(())
    }

    /// The model with the updated parameters.
    pub(super) fn put_into<M: Module>(self, model: M) -> M {
        // The old values go before the new ones are put in.
        drop(self.parameters);
        model.map(&mut Put {
            updated: self.updated.into_iter(),
        })
    }
}

/// Collects the trainable parameters.
#[derive(Default)]
struct Parameters {
    found: Vec<Tensor<1>>,
}

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.is_require_grad() {
            let count = value.shape().num_elements();
            self.found.push(value.inner().reshape([count]));
        }
    }
}

/// Puts updated parameters into their places.
struct Put {
    updated: std::vec::IntoIter<Option<Tensor<1>>>,
}

impl ModuleMapper for Put {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let updated = tensor
            .is_require_grad()
            .then(|| self.updated.next().flatten())
            .flatten();
        let tensor = match updated {
            Some(updated) => Tensor::from_inner(updated.reshape(tensor.shape())).require_grad(),
            None => tensor,
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}
