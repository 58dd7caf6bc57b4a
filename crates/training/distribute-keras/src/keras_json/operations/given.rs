//! The arguments of one call of an operation, by their names.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::super::entries::Reference;
use crate::layers::Constant;

/// An argument.
#[derive(Debug, Clone)]
pub(super) enum Argument {
    Tensor(Reference),
    /// A list with a tensor in it.
    List(Vec<Item>),
    Constant(Value),
}

/// One of a list.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Tensor(Reference),
    Constant(Value),
}

impl Argument {
    /// A list that has no tensor is a constant.
    pub(super) fn of_list(items: Vec<Item>, value: &Value) -> Self {
        if items.iter().any(|item| matches!(item, Item::Tensor(_))) {
            Self::List(items)
        } else {
            Self::Constant(value.clone())
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(_) | Self::List(_) => f.write_str("a tensor"),
            Self::Constant(value) => value.fmt(f),
        }
    }
}

/// What an operation takes: a tensor or a constant.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    Tensor(Reference),
    Constant(Constant),
}

/// What changes no number.
const NEUTRAL: [&str; 8] = [
    "name",
    "trainable",
    "function",
    "validate_indices",
    "conjugate",
    "sparse",
    "out_type",
    "autocast",
];

/// Why a call is refused.
pub(super) type Refusal = String;

/// The arguments that are not yet used.
#[derive(Debug, Default)]
pub(super) struct Given(BTreeMap<String, Argument>, BTreeMap<Reference, usize>);

impl Given {
    pub(super) fn set(&mut self, key: &str, argument: Argument) {
        let is_null = matches!(&argument, Argument::Constant(Value::Null));
        if !is_null && !NEUTRAL.contains(&key) {
            self.0.insert(key.to_string(), argument);
        }
    }

    /// An argument that was not read and has not its default value.
    pub(super) fn left(&self) -> Option<(&str, &Argument)> {
        let is_usual = |key: &str, argument: &Argument| match (key, argument) {
            ("tensorflow", _) => true,
            ("dtype", Argument::Constant(dtype)) => dtype == "float32",
            ("batch_dims" | "initial", Argument::Constant(number)) => number.as_f64() == Some(0.0),
            ("data_format", Argument::Constant(format)) => {
                format == "NHWC" || format == "channels_last"
            }
            (_, Argument::Constant(Value::Bool(flag))) => !flag,
            _ => false,
        };
        let mut left = self.0.iter();
        left.find(|(key, argument)| !is_usual(key, argument))
            .map(|(key, argument)| (key.as_str(), argument))
    }

    /// Takes note of how many axes a tensor has, the batch among them.
    pub(super) fn set_axes(&mut self, tensor: Reference, axes: usize) {
        self.1.insert(tensor, axes);
    }

    /// How many axes a tensor has, if the file says it.
    pub(super) fn axes_of(&self, tensor: &Reference) -> Option<usize> {
        self.1.get(tensor).copied()
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Argument> {
        self.0.remove(key)
    }

    /// A constant value, if one is given.
    pub(super) fn value(&mut self, key: &str) -> Result<Option<Value>, Refusal> {
        match self.take(key) {
            None => Ok(None),
            Some(Argument::Constant(value)) => Ok(Some(value)),
            Some(_) => Err(format!("a tensor as `{key}` of this operation")),
        }
    }

    /// What must be given, as a tensor or numbers.
    pub(super) fn operand(&mut self, key: &str) -> Result<Operand, Refusal> {
        match self.take(key) {
            Some(Argument::Tensor(tensor)) => Ok(Operand::Tensor(tensor)),
            Some(Argument::Constant(value)) => numbers(&value).map(Operand::Constant),
            Some(Argument::List(_)) => Err(format!("a list as `{key}` of this operation")),
            None => Err(format!("no `{key}` of this operation")),
        }
    }

    /// A list of operands, or a single one.
    pub(super) fn operands(&mut self, key: &str) -> Result<Vec<Operand>, Refusal> {
        match self.take(key) {
            Some(Argument::List(items)) => {
                let operand = |item| match item {
                    Item::Tensor(tensor) => Ok(Operand::Tensor(tensor)),
                    Item::Constant(value) => numbers(&value).map(Operand::Constant),
                };
                items.into_iter().map(operand).collect()
            }
            Some(other) => {
                self.set(key, other);
                self.operand(key).map(|one| vec![one])
            }
            None => Err(format!("no `{key}` of this operation")),
        }
    }

    pub(super) fn integer(&mut self, key: &str) -> Result<Option<i64>, Refusal> {
        let value = self.value(key)?;
        let found = value.as_ref().map(|value| one_integer(value).ok_or(value));
        found.transpose().map_err(|value| wrong(key, value))
    }

    /// An integer or a list of them.
    pub(super) fn integers(&mut self, key: &str) -> Result<Option<Vec<i64>>, Refusal> {
        let Some(value) = self.value(key)? else {
            return Ok(None);
        };
        let found = match plain(&value) {
            Value::Array(list) => list.iter().map(one_integer).collect(),
            one => one_integer(one).map(|one| vec![one]),
        };
        found.map(Some).ok_or_else(|| wrong(key, &value))
    }

    pub(super) fn number(&mut self, key: &str, default: f64) -> Result<f64, Refusal> {
        match self.value(key)? {
            None => Ok(default),
            Some(value) => {
                let found = numbers(&value)?.scalar();
                found.ok_or_else(|| wrong(key, &value))
            }
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, Refusal> {
        match self.value(key)? {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(wrong(key, &other)),
        }
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, Refusal> {
        match self.value(key)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(key, &other)),
        }
    }
}

pub(super) fn wrong(key: &str, value: &Value) -> Refusal {
    format!("`{key}` = {value} of this operation")
}

/// The value of an array that Keras 3 wrote as an object.
pub(super) fn plain(value: &Value) -> &Value {
    let is_array = value["class_name"] == "__numpy__" || value["class_name"] == "__tensor__";
    if is_array {
        &value["config"]["value"]
    } else {
        value
    }
}

pub(super) fn one_integer(value: &Value) -> Option<i64> {
    let value = plain(value);
    let whole =
        |number: f64| (number.fract() == 0.0 && number.abs() < 1e9).then_some(number as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}

/// Numbers: one, or nested lists of as many in each.
pub(super) fn numbers(value: &Value) -> Result<Constant, Refusal> {
    fn collect(value: &Value, depth: usize, into: &mut Constant) -> Option<()> {
        match value {
            Value::Array(list) => {
                match into.shape.get(depth) {
                    Some(extent) if *extent != list.len() => return None,
                    Some(_) => {}
                    None if into.values.is_empty() && depth < 8 => into.shape.push(list.len()),
                    None => return None,
                }
                list.iter()
                    .try_for_each(|one| collect(one, depth + 1, into))
            }
            Value::Bool(flag) => number(f64::from(u8::from(*flag)), depth, into),
            other => number(other.as_f64()?, depth, into),
        }
    }
    fn number(number: f64, depth: usize, into: &mut Constant) -> Option<()> {
        (depth == into.shape.len()).then(|| into.values.push(number))
    }
    let mut constant = Constant {
        shape: Vec::new(),
        values: Vec::new(),
    };
    let found = collect(plain(value), 0, &mut constant);
    match found {
        Some(()) if !constant.values.is_empty() => Ok(constant),
        _ => Err(format!("{value} as a value of this operation")),
    }
}
