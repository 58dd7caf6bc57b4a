//! How exactly products are computed.

use std::fmt;
use std::str::FromStr;

/// How exactly a TPU multiplies matrices of f32. Its matrix unit multiplies bf16 (8 bits of
/// mantissa) and adds in f32; more bits are had by splitting each number into several bf16. Other
/// devices compute in the element type's own precision whatever is asked for.
///
/// (JAX: `jax_default_matmul_precision`; TensorFlow on TPUs: always `Default`.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// One bf16 product: the fastest, with 8 bits of mantissa.
    Default,
    /// Three bf16 products: about 16 bits.
    High,
    /// Six bf16 products: all bits of f32.
    #[default]
    Highest,
}

impl Precision {
    /// All of them, from the fastest to the most exact.
    pub const ALL: [Self; 3] = [Self::Default, Self::High, Self::Highest];

    /// `default`, `high` or `highest`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::High => "high",
            Self::Highest => "highest",
        }
    }

    /// The attribute of an operation with two operands.
    pub(super) fn attribute(self) -> String {
        let one = format!("#stablehlo<precision {}>", self.name().to_uppercase());
        format!("precision_config = [{one}, {one}]")
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|precision| precision.name() == name);
        found.ok_or_else(|| format!("`{name}` is no precision: default, high or highest"))
    }
}
