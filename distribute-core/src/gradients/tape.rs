//! One backward pass of a loss, and the gradients of several models from it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::Module;
use burn::tensor::{Gradients as BurnGradients, Tensor};

use super::{Gradients, Residence, RowGradients, Watched};
use crate::burn_internals::is_used_up;
use crate::notes::StepNotes;
use crate::sync::panic_message;
use crate::trace::{self, CapturedTape};
use crate::{Error, Result};

/// The backward pass of a loss, from which gradients are taken.
pub struct Tape {
    pass: Pass,
    rows: Vec<RowGradients>,
}

enum Pass {
    /// Of a step that is captured.
    Captured(CapturedTape),
    /// Of a step that runs as it is.
    Run(BurnGradients),
}

impl Tape {
    /// Makes the backward pass; takes the gradients of rows that were looked up.
    ///
    /// # Errors
    /// For a loss that is not one number, has no graph, or whose graph is used up.
    pub(crate) fn of(loss: &Tensor<1>, watched: &[Watched]) -> Result<Self> {
        if loss.shape().num_elements() != 1 {
            let op = "gradient: the loss must be one number (average with `average_loss`)";
            return Err(Error::shape(op, &[1], &loss.shape()));
        }
        if let Some(pass) = passed(|| trace::backward(loss))? {
            let (pass, rows) = (Pass::Captured(pass?), Vec::new());
            return Ok(Self { pass, rows });
        }
        if !(loss.is_autodiff() && loss.is_tracked()) {
            return Err(Error::invalid(
                "gradient: the loss is not tracked; build the model in the strategy's scope, \
                 which has autodiff, and pass it to `run` as `&mut state`: a state that is passed \
                 as `&state` is in evaluation mode (`InTraining::new(&state)` lends it in training \
                 mode), and a step whose states are all passed so has no autodiff",
            ));
        }
        let mut pass = passed(|| loss.backward())?;
        let rows = watched.iter().map(|watched| watched.take(&mut pass));
        let rows = rows.filter_map(Result::transpose).collect::<Result<_>>()?;
        let pass = Pass::Run(pass);
        Ok(Self { pass, rows })
    }

    /// Handles of a model's gradients, which the tape has too.
    fn of_model(&self, model: &impl Module) -> Result<Gradients> {
        Gradients::collect(model, |_, tensor| {
            Ok(match &self.pass {
                Pass::Captured(pass) => tensor.captured_gradient(pass).map(Residence::Captured),
                Pass::Run(pass) => {
                    let gradient = tensor.gradient(pass);
                    gradient.map(|it| Residence::device(it, tensor.spec().shape.into()))
                }
            })
        })
    }
}

/// A backward pass. burn has only a panic for one that it cannot make twice.
fn passed<R>(backward: impl FnOnce() -> R) -> Result<R> {
    catch_unwind(AssertUnwindSafe(backward)).map_err(|panic| {
        if !is_used_up(&panic_message(&*panic)) {
            resume_unwind(panic);
        }
        Error::invalid(
            "gradient: an earlier call has used up a part of the loss' graph; take the gradients \
             of all models in one call, `ctx.gradients(&loss, (&a, &b))`, or compute the forward \
             pass anew",
        )
    })
}

/// References of the models whose gradients [`ReplicaContext::gradients`] takes, as a tuple of 2 to
/// 8: `(&generator.model, &critic.model)`.
///
/// [`ReplicaContext::gradients`]: crate::ReplicaContext::gradients
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tuple of references to models",
    label = "gradients are taken of 2 to 8 models: `(&first.model, &second.model)`",
    note = "for one model use `ctx.gradient(&loss, &state.model)`"
)]
pub trait Models: Collect {}

/// What models do with a backward pass, for [`Models`] of this crate alone.
pub trait Collect {
    /// One set of gradients for each model, in the same order.
    type Gradients;

    /// Takes the gradients; gradients of rows go to the first model's set. `keeps` leaves them
    /// where burn has put them, also in host memory.
    ///
    /// # Errors
    /// If the device cannot hand one out.
    fn collect(self, tape: Tape, keeps: bool) -> Result<Self::Gradients>;

    /// Names the layer of a failure that was noted by its path in one of them.
    fn name_failure(&self, notes: &StepNotes);
}

macro_rules! models {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Module),+> Collect for ($(&$name,)+) {
            type Gradients = ($(models!(@of $name),)+);

            fn collect(self, tape: Tape, keeps: bool) -> Result<Self::Gradients> {
                let mut all = ($(tape.of_model(self.$index)?,)+);
                // What the tape lets go of has one owner left, and moves without a copy.
                let rows = tape.rows;
                drop(tape.pass);
                rows.into_iter().try_for_each(|rows| all.0.add_rows(rows))?;
                $(all.$index.settle(keeps)?;)+
                Ok(all)
            }

            fn name_failure(&self, notes: &StepNotes) {
                $(notes.name_failure(self.$index);)+
            }
        }
    };
    (@of $name:ident) => { Gradients };
}

models!(A 0);
models!(A 0, B 1);
models!(A 0, B 1, C 2);
models!(A 0, B 1, C 2, D 3);
models!(A 0, B 1, C 2, D 3, E 4);
models!(A 0, B 1, C 2, D 3, E 4, F 5);
models!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
models!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

macro_rules! several {
    ($($name:ident)+) => {
        impl<$($name: Module),+> Models for ($(&$name,)+) {}
    };
}

several!(A B);
several!(A B C);
several!(A B C D);
several!(A B C D E);
several!(A B C D E F);
several!(A B C D E F G);
several!(A B C D E F G H);
