//! Values with a name, which plugins take as options and give as attributes.

use std::collections::BTreeMap;

/// Attributes of a plugin, a device or a program, by name.
pub type Attributes = BTreeMap<String, Value>;

/// A `PJRT_NamedValue` without its name.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text.
    String(String),
    /// A 64-bit integer.
    Int64(i64),
    /// A list of 64-bit integers.
    Int64List(Vec<i64>),
    /// A 32-bit float.
    Float(f32),
    /// A boolean.
    Bool(bool),
}

impl Value {
    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if it is one.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Int64(number) => Some(*number),
            _ => None,
        }
    }

    /// The number, if it is an integer or a float.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int64(number) => Some(*number as f64),
            Self::Float(number) => Some(f64::from(*number)),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_string())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int64(number)
    }
}

impl From<Vec<i64>> for Value {
    fn from(numbers: Vec<i64>) -> Self {
        Self::Int64List(numbers)
    }
}

impl From<f32> for Value {
    fn from(number: f32) -> Self {
        Self::Float(number)
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Self {
        Self::Bool(yes)
    }
}
