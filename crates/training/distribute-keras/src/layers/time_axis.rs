//! What `TimeDistributed` and `Bidirectional` do beside the layers that they are made of.

use super::nd::Nd;
use super::*;
use crate::shape::MOST_AXES;

/// A part of `keras.layers.TimeDistributed`, or of `Bidirectional`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeAxis {
    /// Of `TimeDistributed`: every step becomes an example of its own.
    Split,
    /// Of `TimeDistributed`: examples become the steps of sequences again, as many as a second
    /// value has, the one that was split. Its mask is the result's.
    Join,
    /// Of `Bidirectional`: the steps from the last to the first.
    Reverse,
}

impl KerasLayer for TimeAxis {
    /// The reader of a model's graph makes layers and these parts of it, so that none is read here.
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Err(fields.refuse("layer", "use it as a layer of the model"))
    }

    fn class(&self) -> Option<&'static str> {
        Some(match self {
            Self::Split | Self::Join => "TimeDistributed",
            Self::Reverse => "Bidirectional",
        })
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let fits = |dims: &[usize]| {
            Shape::of(dims).ok_or_else(|| format!("gives more than {MOST_AXES} axes"))
        };
        match (self, inputs) {
            (Self::Split, [all]) => match &all.dims()[..] {
                [_, each @ ..] if !each.is_empty() => fits(each),
                _ => Err(format!("needs steps of values, gets {all}")),
            },
            (Self::Join, [each, all]) => {
                let steps = all.dims().into_iter().take(1);
                fits(&steps.chain(each.dims()).collect::<Vec<_>>())
            }
            (Self::Reverse, [all]) => all.needs_sequence().map(|_| *all),
            _ => Err(format!("gets {} values", inputs.len())),
        }
    }

    fn call_all(&self, inputs: Vec<Value>, _: &mut Pass<'_, '_>) -> Option<Value> {
        let mut inputs = inputs.into_iter();
        let first = inputs.next()?;
        Some(match self {
            Self::Split => Value::of(split(first.flow)),
            Self::Join => {
                let all = inputs.next()?;
                Value {
                    flow: joined(first.flow, &all.flow.keras_dims()),
                    mask: all.mask,
                }
            }
            Self::Reverse => match first.flow {
                Flow::Sequence(x) => Value {
                    flow: Flow::Sequence(x.flip([1])),
                    mask: first.mask,
                },
                // A plan never puts it on another shape.
                other => Value::of(other),
            },
        })
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(match self {
            Self::Split => None,
            Self::Join => masks.last().copied().flatten(),
            Self::Reverse => first_mask(masks),
        })
    }
}

fn split(x: Flow) -> Flow {
    match x {
        Flow::Sequence(x) => Flow::Flat(x.flatten(0, 1)),
        Flow::Image(x) => Flow::Sequence(x.permute([0, 2, 3, 1]).flatten(0, 1)),
        Flow::Volume(x) => Flow::Image(x.permute([0, 2, 1, 3, 4]).flatten(0, 1)),
        other => {
            let dims = other.keras_dims();
            let &[batch, steps, ref each @ ..] = &dims[..] else {
                return other;
            };
            let dims = [&[batch * steps], each].concat();
            Nd::of(other).reshape(&dims).into_flow()
        }
    }
}

/// `all` are the extents of what was split.
fn joined(x: Flow, all: &[usize]) -> Flow {
    let &[batch, steps, ..] = all else {
        return x;
    };
    match x {
        Flow::Image(x) => {
            let [_, channels, height, width] = x.dims();
            let x = x.reshape([batch, steps, channels, height, width]);
            Flow::Volume(x.permute([0, 2, 1, 3, 4]))
        }
        other => {
            let dims = other.keras_dims();
            let dims = [&[batch, steps], &dims[1..]].concat();
            Nd::of(other).reshape(&dims).into_flow()
        }
    }
}
