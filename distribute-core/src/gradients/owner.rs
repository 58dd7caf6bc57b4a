//! Which model gradients are of.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::Gradients;
use crate::{Error, Result};

impl Gradients {
    /// Looks whether these are the gradients of this model's trainable parameters.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which names the first that differs.
    pub(crate) fn check_model<M: Module>(&self, op: &str, model: &M) -> Result<()> {
        let mut own = Trainable::default();
        model.visit(&mut own);
        if self.param_ids().eq(own.parameters.iter().map(|one| one.id)) {
            return Ok(());
        }
        let mut own = Trainable {
            names: Some(Vec::new()),
            ..Trainable::default()
        };
        model.visit(&mut own);
        let differs = self.entries.iter().zip(&own.parameters);
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
                own.parameters.len()
            ),
        };
        Err(Error::invalid(format!(
            "{op}: {what}; compute them with `ctx.gradient(&loss, &state.model)`"
        )))
    }
}

/// The trainable parameters of a model, in visit order.
#[derive(Default)]
struct Trainable {
    parameters: Vec<Parameter>,
    /// The modules that are being visited, if names are asked for.
    names: Option<Vec<String>>,
}

struct Parameter {
    id: ParamId,
    path: String,
    shape: Vec<usize>,
}

impl ModuleVisitor for Trainable {
    fn enter_module(&mut self, name: &str, _: &str) {
        if let Some(names) = &mut self.names {
            names.push(name.to_string());
        }
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        if let Some(names) = &mut self.names {
            names.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() {
            return;
        }
        let names = self.names.as_ref();
        self.parameters.push(Parameter {
            id: param.id,
            path: names.map_or_else(String::new, |names| names.join(".")),
            shape: names.map_or_else(Vec::new, |_| value.shape().to_vec()),
        });
    }
}
