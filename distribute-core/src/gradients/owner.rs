//! Which model gradients are of.

use burn::module::{Module, ParamId};

use super::Gradients;
use crate::parameters;
use crate::{Error, Result};

impl Gradients {
    /// Looks whether these are the gradients of this model's trainable parameters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which names the first that differs.
    pub(crate) fn check_model<M: Module>(&self, op: &str, model: &M) -> Result<()> {
        let mut ids = Vec::with_capacity(self.len());
        parameters::visit_trained(model, |id, _, _| {
            ids.push(id);
            Ok(())
        })?;
        if self.param_ids().eq(ids) {
            return Ok(());
        }
        let mut own = Vec::new();
        parameters::visit_trained(model, |id, path, tensor| {
            let (path, shape) = (path.to_string(), tensor.spec().shape);
            own.push(Parameter { id, path, shape });
            Ok(())
        })?;
        let differs = self.entries.iter().zip(&own);
        let mut differs = differs.filter(|(entry, own)| entry.id != own.id);
        let what = match differs.next() {
            Some((entry, own)) => format!(
                "in the place of `{}` of shape {:?} there is the gradient of another model's \
                 parameter, of shape {:?}",
                own.path, own.shape, entry.spec.shape
            ),
            None => format!(
                "{} gradients for a model of {} trainable parameters",
                self.len(),
                own.len()
            ),
        };
        Err(Error::invalid(format!(
            "{op}: {what}; compute them with `ctx.gradient(&loss, &state.model)`"
        )))
    }
}

/// A trainable parameter of a model.
struct Parameter {
    id: ParamId,
    path: String,
    shape: Vec<usize>,
}
