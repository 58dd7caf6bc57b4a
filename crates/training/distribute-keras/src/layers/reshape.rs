//! `Reshape`.

use super::*;
use crate::shape::MOST_AXES;

/// `keras.layers.Reshape`.
#[derive(Debug, Clone, PartialEq)]
pub struct Reshape {
    /// The extents; `None` for the one that follows from the others.
    pub target_shape: Vec<Option<usize>>,
}

impl KerasLayer for Reshape {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let extents = fields.get("target_shape").and_then(Json::as_array);
        let extent = |value: &Json| match value.as_i64() {
            Some(-1) => Some(None),
            _ => size(value).map(Some),
        };
        let target: Option<Vec<_>> = extents.and_then(|all| all.iter().map(extent).collect());
        match target.filter(|target| open(target) < 2) {
            Some(target_shape) => Ok(Self { target_shape }),
            None => Err(fields.refuse(
                "target_shape",
                "use a list of whole numbers from 1 on, and -1 for one of them",
            )),
        }
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let known = self
            .target_shape
            .iter()
            .flatten()
            .copied()
            .fold(1, usize::saturating_mul);
        let elements = input.elements();
        let fits = match open(&self.target_shape) {
            0 => known == elements,
            1 => known > 0 && elements.is_multiple_of(known),
            _ => false,
        };
        if !fits {
            return Err(format!(
                "{input} has {elements} values, and `target_shape` other ones"
            ));
        }
        let dims = self
            .target_shape
            .iter()
            .map(|extent| extent.unwrap_or(elements / known));
        Shape::of(&dims.collect::<Vec<_>>())
            .ok_or_else(|| format!("`target_shape` has more than {MOST_AXES} axes"))
    }

    /// The values in Keras' order, as examples of another shape.
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        Value::of(Flow::from_examples(x.flow.flatten(true), pass.output))
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        true
    }
}

/// How many extents follow from the others.
fn open(target: &[Option<usize>]) -> usize {
    target.iter().filter(|extent| extent.is_none()).count()
}
