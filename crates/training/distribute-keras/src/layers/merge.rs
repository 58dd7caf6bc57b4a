//! `Add`, `Concatenate` and the like: several values become one.

use super::nd::Nd;
use super::*;

/// How several values become one, element by element with broadcasting, or side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Merge {
    /// `keras.layers.Add`.
    Add,
    /// `keras.layers.Subtract`, of two values.
    Subtract,
    /// `keras.layers.Multiply`.
    Multiply,
    /// `keras.layers.Average`.
    Average,
    /// `keras.layers.Maximum`.
    Maximum,
    /// `keras.layers.Minimum`.
    Minimum,
    /// `keras.layers.Concatenate`.
    Concatenate {
        /// The axis, as Keras counts them: 0 is the batch, -1 the last one.
        axis: i64,
    },
}

/// The layers without options.
const CLASSES: [(&str, Merge); 6] = [
    ("Add", Merge::Add),
    ("Subtract", Merge::Subtract),
    ("Multiply", Merge::Multiply),
    ("Average", Merge::Average),
    ("Maximum", Merge::Maximum),
    ("Minimum", Merge::Minimum),
];

impl KerasLayer for Merge {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        match CLASSES.iter().find(|(known, _)| *known == class) {
            Some((_, merge)) => Ok(*merge),
            None => axis(fields).map(|axis| Self::Concatenate { axis }),
        }
    }

    fn class(&self) -> Option<&'static str> {
        let found = CLASSES.iter().find(|(_, merge)| merge == self);
        Some(found.map_or("Concatenate", |(class, _)| class))
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let list = || {
            let shapes: Vec<String> = inputs.iter().map(Shape::to_string).collect();
            shapes.join(" and ")
        };
        let (Some(first), true) = (inputs.first(), inputs.len() > 1) else {
            return Err("needs two values or more, gets one".to_string());
        };
        if matches!(self, Self::Subtract) && inputs.len() != 2 {
            return Err(format!("needs two values, gets {}", inputs.len()));
        }
        let rank = first.dims().len();
        let along = match *self {
            Self::Concatenate { axis } => Some(first.axis(axis).ok_or_else(|| {
                format!(
                    "`axis` = {axis} is not an axis of {first}; use one from 1 to {rank}, or -1"
                )
            })?),
            _ => None,
        };
        let mut dims = first.dims();
        for input in &inputs[1..] {
            let others = input.dims();
            if others.len() != rank {
                return Err(format!("needs values of one rank, gets {}", list()));
            }
            for (axis, (dim, other)) in dims.iter_mut().zip(others).enumerate() {
                *dim = match along {
                    Some(along) if along == axis => dim.saturating_add(other),
                    None if *dim == 1 || other == 1 => (*dim).max(other),
                    _ if *dim == other => other,
                    _ => return Err(format!("needs shapes that fit each other, gets {}", list())),
                };
            }
        }
        Shape::of(&dims).ok_or_else(list)
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let axis = match *self {
            Self::Concatenate { axis } => pass.output.tensor_axis(axis),
            _ => 0,
        };
        let mut inputs = inputs.into_iter();
        let Value { flow: first, mask } = inputs.next()?;
        let others = inputs.map(|value| value.flow);
        macro_rules! merged {
            ($rank:ident, $first:ident) => {{
                let others = others.filter_map(|x| match x {
                    Flow::$rank(x) => Some(x),
                    _ => None,
                });
                Flow::$rank(merged(*self, axis, $first, others))
            }};
            // Of any other number of axes.
            (Other: $($rank:ident)+, $first:ident) => {
                match $first {
                    $(Nd::$rank(x) => {
                        let others = others.filter_map(|x| match x {
                            Flow::Other(Nd::$rank(x)) => Some(x),
                            _ => None,
                        });
                        Flow::Other(Nd::$rank(merged(*self, axis, x, others)))
                    })+
                }
            };
        }
        let flow = match first {
            Flow::Flat(x) => merged!(Flat, x),
            Flow::Sequence(x) => merged!(Sequence, x),
            Flow::Image(x) => merged!(Image, x),
            Flow::Volume(x) => merged!(Volume, x),
            Flow::Other(x) => merged!(Other: R1 R2 R3 R4 R5 R6 R7, x),
        };
        Some(Value { flow, mask })
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        let first = first_mask(masks);
        let why = match self {
            // Side by side, they have the same steps.
            Self::Concatenate { axis: -1 } if masks.iter().all(|mask| *mask == first) => {
                return Ok(first);
            }
            Self::Concatenate { .. } if first.is_some() => {
                "it would have to join the masks of sequences with padding; use mask_zero=False \
                 in the Embedding"
            }
            // Keras 2 and 3 do not agree on the mask of such a sum, nor on the values that an
            // attention reads.
            _ if masks.iter().any(|mask| *mask != first) => {
                "it receives sequences with different padding; use mask_zero=False in the \
                 Embedding"
            }
            _ => return Ok(first),
        };
        Err(why.to_string())
    }
}

/// The values in their order, from the first to the last.
fn merged<const D: usize>(
    merge: Merge,
    axis: usize,
    first: Tensor<D>,
    others: impl Iterator<Item = Tensor<D>>,
) -> Tensor<D> {
    match merge {
        Merge::Add => others.fold(first, |sum, x| sum + x),
        Merge::Subtract => others.fold(first, |rest, x| rest - x),
        Merge::Multiply => others.fold(first, |product, x| product * x),
        Merge::Average => {
            let mut count = 1;
            let sum = others.fold(first, |sum, x| {
                count += 1;
                sum + x
            });
            sum.div_scalar(count)
        }
        Merge::Maximum => others.fold(first, |most, x| {
            let (most, x) = alike(most, x);
            most.max_pair(x)
        }),
        Merge::Minimum => others.fold(first, |least, x| {
            let (least, x) = alike(least, x);
            least.min_pair(x)
        }),
        Merge::Concatenate { .. } => {
            Tensor::cat(std::iter::once(first).chain(others).collect(), axis)
        }
    }
}

/// Both in the shape that holds both: burn compares equal shapes only.
fn alike<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
    let (dims, others) = (x.dims(), y.dims());
    let both = std::array::from_fn::<usize, D, _>(|i| dims[i].max(others[i]));
    let expand = |x: Tensor<D>| if x.dims() == both { x } else { x.expand(both) };
    (expand(x), expand(y))
}
