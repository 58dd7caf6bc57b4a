//! Which model gradients are of.

use burn::module::Module;

use super::Gradients;
use crate::parameters;
use crate::{Error, Result};

impl Gradients {
    /// Looks whether these are the gradients of this model's trainable parameters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which names the first that differs.
    pub(crate) fn check_model<M: Module>(&self, op: &str, model: &M) -> Result<()> {
        let other = |what: String| {
            Err(Error::invalid(format!(
                "{op}: {what}; compute them with `ctx.gradient(&loss, &state.model)`"
            )))
        };
        let (mut entries, mut count) = (self.entries.iter(), 0);
        parameters::visit_trained(model, |id, path, tensor| {
            count += 1;
            match entries.next() {
                Some(entry) if entry.id != id => other(format!(
                    "in the place of `{path}` of shape {:?} there is the gradient of another \
                     model's parameter, of shape {:?}",
                    tensor.spec().shape,
                    entry.spec.shape
                )),
                _ => Ok(()),
            }
        })?;
        match self.len() {
            own if own == count => Ok(()),
            own => other(format!(
                "{own} gradients for a model of {count} trainable parameters"
            )),
        }
    }

    /// Looks whether other gradients are of the same model's parameters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which says in what the models differ.
    pub(super) fn check_same_model(&self, other: &Self) -> Result<()> {
        let (own, others) = (self.len(), other.len());
        let mut pairs = self.entries.iter().zip(&other.entries);
        let differs = pairs.position(|(mine, theirs)| {
            mine.id != theirs.id || mine.spec.shape != theirs.spec.shape
        });
        let what = match differs {
            Some(index) => format!(
                "parameter {index} is another one: of shape {:?} here and {:?} there",
                self.entries[index].spec.shape, other.entries[index].spec.shape
            ),
            None if own != others => format!("{own} parameters here and {others} there"),
            None => return Ok(()),
        };
        Err(Error::invalid(format!(
            "accumulate: the gradients are of different models ({what}); add up gradients of one \
             model, and begin anew when another one is trained"
        )))
    }
}
