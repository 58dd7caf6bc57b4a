//! An element of any structure, as TensorFlow's nests.

use std::collections::BTreeMap;

use distribute_pipeline::{Array, PipelineError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Arrays, and lists and maps of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Element {
    Int(Array<i64>),
    Float(Array<f32>),
    List(Vec<Element>),
    Named(BTreeMap<String, Element>),
}

impl Element {
    /// An integer.
    pub(super) fn of(value: i64) -> Self {
        Self::Int(Array::scalar(value))
    }

    /// The one integer that it is.
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Self::Int(array) if array.shape().is_empty() => array.values().first().copied(),
            _ => None,
        }
    }

    /// Every number of it more by `more`.
    pub(super) fn plus(self, more: i64) -> Self {
        match self {
            Self::Int(array) => Self::Int(changed(array, |value| value + more)),
            Self::Float(array) => Self::Float(changed(array, |value| value + more as f32)),
            Self::List(list) => Self::List(list.into_iter().map(|one| one.plus(more)).collect()),
            Self::Named(fields) => {
                let fields = fields.into_iter().map(|(name, one)| (name, one.plus(more)));
                Self::Named(fields.collect())
            }
        }
    }

    /// Elements of one structure as one of their batches.
    pub(super) fn stack(elements: Vec<Self>) -> Result<Self, PipelineError> {
        let other = || PipelineError::argument("batch", "elements of different structures");
        let same = |kind: fn(Self) -> Option<Array<i64>>, elements: Vec<Self>| {
            elements
                .into_iter()
                .map(kind)
                .collect::<Option<Vec<_>>>()
                .ok_or_else(other)
        };
        match elements.first() {
            Some(Self::Int(_)) | None => {
                Array::stack(same(Self::into_integers, elements)?).map(Self::Int)
            }
            Some(Self::Float(_)) => {
                let floats = elements.into_iter().map(|one| match one {
                    Self::Float(array) => Ok(array),
                    _ => Err(other()),
                });
                Array::stack(floats.collect::<Result<_, _>>()?).map(Self::Float)
            }
            Some(Self::List(_)) => Self::stack_lists(elements).map(Self::List),
            Some(Self::Named(first)) => {
                let names: Vec<String> = first.keys().cloned().collect();
                let lists = elements.into_iter().map(Self::into_list).map(Self::List);
                let columns = Self::stack_lists(lists.collect())?;
                Ok(Self::Named(names.into_iter().zip(columns).collect()))
            }
        }
    }

    fn stack_lists(elements: Vec<Self>) -> Result<Vec<Self>, PipelineError> {
        let mut columns: Vec<Vec<Self>> = Vec::new();
        for row in elements.into_iter().map(Self::into_list) {
            columns.resize_with(row.len(), Vec::new);
            for (column, one) in columns.iter_mut().zip(row) {
                column.push(one);
            }
        }
        columns.into_iter().map(Self::stack).collect()
    }

    /// The elements that a batch was made of.
    pub(super) fn unstack(self) -> Result<Vec<Self>, PipelineError> {
        match self {
            Self::Int(array) => Ok(array.unstack()?.into_iter().map(Self::Int).collect()),
            Self::Float(array) => Ok(array.unstack()?.into_iter().map(Self::Float).collect()),
            Self::List(list) => Ok(rows(list)?.into_iter().map(Self::List).collect()),
            Self::Named(fields) => {
                let (names, columns): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
                let named = |row: Vec<Self>| Self::Named(names.iter().cloned().zip(row).collect());
                Ok(rows(columns)?.into_iter().map(named).collect())
            }
        }
    }

    pub(super) fn into_integers(self) -> Option<Array<i64>> {
        match self {
            Self::Int(array) => Some(array),
            _ => None,
        }
    }

    fn into_list(self) -> Vec<Self> {
        match self {
            Self::List(list) => list,
            Self::Named(fields) => fields.into_values().collect(),
            other => vec![other],
        }
    }

    /// The element as the golden schema writes it.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Int(array) => {
                json!({"dtype": "int64", "shape": array.shape(), "data": array.values()})
            }
            Self::Float(array) => {
                json!({"dtype": "float32", "shape": array.shape(), "data": array.values()})
            }
            Self::List(list) => list.iter().map(Self::to_json).collect(),
            Self::Named(fields) => {
                let fields = fields
                    .iter()
                    .map(|(name, one)| (name.clone(), one.to_json()));
                Value::Object(fields.collect())
            }
        }
    }
}

fn rows(columns: Vec<Element>) -> Result<Vec<Vec<Element>>, PipelineError> {
    let mut rows: Vec<Vec<Element>> = Vec::new();
    for column in columns {
        let column = column.unstack()?;
        rows.resize_with(column.len(), Vec::new);
        for (row, one) in rows.iter_mut().zip(column) {
            row.push(one);
        }
    }
    Ok(rows)
}

fn changed<T: Copy>(array: Array<T>, change: impl Fn(T) -> T) -> Array<T> {
    let values: Vec<T> = array.values().iter().map(|value| change(*value)).collect();
    // The shape stays.
    Array::new(values, array.shape()).unwrap_or(array)
}
