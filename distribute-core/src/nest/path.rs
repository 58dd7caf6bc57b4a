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
        match path.is_root() {
            true => self,
            false => Self::Leaf {
                path: path.to_string(),
                source: Arc::new(self),
            },
        }
    }
}
