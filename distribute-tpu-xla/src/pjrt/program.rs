//! Programs as a plugin takes and gives them.

/// The code of a program and the format it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// `mlir` (StableHLO, as text or as bytecode), `hlo` (a serialized `HloModuleProto`) or
    /// `hlo_with_config` (a serialized `HloModuleProtoWithConfig`).
    pub format: String,
    /// The code.
    pub code: Vec<u8>,
}

impl Program {
    /// The text of a StableHLO module.
    pub fn mlir(text: &str) -> Self {
        Self {
            format: "mlir".to_string(),
            code: text.as_bytes().to_vec(),
        }
    }

    /// Whether these bytes stand somewhere in the code. The name of an operation, such as
    /// `all-reduce`, stands as such also in the binary formats.
    pub fn contains(&self, text: &str) -> bool {
        let text = text.as_bytes();
        text.is_empty() || self.code.windows(text.len()).any(|window| window == text)
    }
}
