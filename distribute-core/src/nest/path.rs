//! Where a leaf is inside a value: [`NestPath`].

use std::fmt;
use std::sync::Arc;

use crate::Error;

/// Where a leaf is inside a value: `outputs.loss`, `0.images`; empty for the value itself.
///
/// It lies on the stack of the walk, so that it costs nothing until it is written.
#[derive(Debug, Clone, Copy)]
pub struct NestPath<'a> {
    parent: Option<&'a NestPath<'a>>,
    part: Part<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    Field(&'a str),
    Item(usize),
}

impl NestPath<'static> {
    /// The value itself.
    pub const ROOT: Self = Self {
        parent: None,
        part: Part::Field(""),
    };
}

impl<'a> NestPath<'a> {
    /// The field of this name, or a path inside.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> Self {
        Self {
            parent: Some(self),
            part: Part::Field(name),
        }
    }

    /// The part of this number: of a tuple, an array, a list; of a map in the order of its keys.
    #[must_use]
    pub fn item(&'a self, index: usize) -> Self {
        Self {
            parent: Some(self),
            part: Part::Item(index),
        }
    }

    /// Whether it is the value itself.
    pub fn is_root(&self) -> bool {
        self.parent.is_none()
    }
}

impl fmt::Display for NestPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent.filter(|parent| !parent.is_root()) {
            write!(f, "{parent}.")?;
        }
        match self.part {
            Part::Field(name) => f.write_str(name),
            Part::Item(index) => write!(f, "{index}"),
        }
    }
}

impl Error {
    /// The same of the leaf at this path.
    pub(crate) fn at(self, path: &NestPath<'_>) -> Self {
        if path.is_root() {
            self
        } else {
            Self::Leaf {
                path: path.to_string(),
                source: Arc::new(self),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use burn::tensor::{Device, Tensor};

    use super::NestPath;
    use crate::{Error, MirroredStrategy, Nest, PerReplica, ReduceOp, StrategyExt};

    #[derive(Debug, Clone, Nest)]
    struct Outputs {
        loss: Tensor<1>,
        classes: (u64, [Kind; 2]),
        more: Option<Vec<f32>>,
        by_name: BTreeMap<&'static str, f64>,
        unit: (),
    }

    #[derive(Debug, Clone, Nest)]
    enum Kind {
        Pair(f32, f32),
        Named { score: f32 },
        Nothing,
    }

    fn outputs(losses: usize) -> Outputs {
        Outputs {
            loss: Tensor::ones([losses], &Device::flex()),
            classes: (1, [Kind::Pair(1.0, 2.0), Kind::Named { score: 3.0 }]),
            more: Some(vec![4.0, 5.0]),
            by_name: BTreeMap::from([("b", 6.0), ("a", 7.0)]),
            unit: (),
        }
    }

    fn paths(value: &mut dyn Nest) -> Vec<String> {
        let mut paths = Vec::new();
        let mut note = |path: &NestPath<'_>, _: &mut dyn crate::Leaf| {
            paths.push(path.to_string());
            Ok(())
        };
        value.walk(&NestPath::ROOT, &mut note).unwrap();
        paths
    }

    #[test]
    fn leaves_have_the_paths_of_their_fields_and_numbers() {
        let expected = [
            "loss",
            "classes.0",
            "classes.1.0.0",
            "classes.1.0.1",
            "classes.1.1.score",
            "more.0",
            "more.1",
            "by_name.0",
            "by_name.1",
        ];
        assert_eq!(paths(&mut outputs(1)), expected);
        assert_eq!(paths(&mut (Kind::Nothing, outputs(1).loss)), ["1"]);
        assert_eq!(paths(&mut 1.0_f32), [""]);
        let inside = NestPath::ROOT
            .field("model")
            .field("layer.weight")
            .to_string();
        assert_eq!(inside, "model.layer.weight");
    }

    #[test]
    fn an_error_of_a_leaf_says_where_it_is() {
        let mut value = (outputs(2), 2.0_f32);
        let mut leaves = value.take_leaves().unwrap();
        let loss = leaves.first().unwrap().clone();
        *leaves.last_mut().unwrap() = loss.clone();
        let error = value.put_leaves(leaves).unwrap_err();
        assert!(
            error.to_string().starts_with("`1`: reduce into f32"),
            "{error}"
        );
        assert!(matches!(error.root_cause(), Error::Shape { .. }), "{error}");
        let error = value.put_leaves(vec![loss]).unwrap_err().to_string();
        assert!(error.starts_with("`0.classes.0`: "), "{error}");
        // Of a value that is one leaf there is nothing to say.
        let error = 1.0_f64.put_leaves(Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with("the replicas' values differ"), "{error}");
    }

    #[test]
    fn reductions_say_which_leaf_differs_between_replicas() {
        let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
        let values = || PerReplica::new(vec![(1.0_f32, outputs(1)), (1.0, outputs(2))]);
        let error = strategy.reduce(ReduceOp::Sum, values()).unwrap_err();
        assert!(error.to_string().starts_with("`1.loss`: reduce"), "{error}");
        assert!(matches!(error.root_cause(), Error::Shape { .. }), "{error}");
        let error = strategy.gather(values(), 0).unwrap_err().to_string();
        assert!(error.starts_with("`0`: gather"), "{error}");
        let reduced = strategy.run(values(), |ctx, value| ctx.all_reduce(ReduceOp::Sum, value));
        let error = reduced.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("`1.loss`: all_reduce: the replicas passed"),
            "{text}"
        );
        assert!(matches!(error.root_cause(), Error::Shape { .. }), "{text}");
    }
}
