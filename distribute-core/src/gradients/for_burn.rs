//! Gradients as burn's optimizers take them.

use burn::module::Module;
use burn::optim::GradientsParams;

use super::Gradients;
use crate::{Result, parameters};

impl Gradients {
    /// The gradients as burn's optimizers take them, without a copy on the flex backend.
    ///
    /// `model` is the one they were computed for. Gradients of table rows are left out.
    ///
    /// # Errors
    /// If they are of another model, and in a step that is compiled: burn's optimizers cannot be
    /// captured.
    pub fn into_params<M: Module>(mut self, model: &M) -> Result<GradientsParams> {
        self.check_model("into_params", model)?;
        let (mut params, mut index) = (GradientsParams::new(), 0);
        parameters::visit_trained(model, |id, _, tensor| {
            if let Some(gradient) = self.take_flat(index, &tensor.flat().device())? {
                tensor.give_param(id, gradient, &mut params);
            }
            index += 1;
            Ok(())
        })?;
        Ok(params)
    }
}
