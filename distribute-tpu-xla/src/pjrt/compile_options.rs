//! How a program is compiled, and its encoding as `xla.CompileOptionsProto`.

use super::error::{PjrtError, Result};
use super::value::Value;

/// How many copies of a program run where, and which of the compiler's flags are changed.
#[derive(Debug, Clone, PartialEq)]
pub struct CompileOptions {
    replicas: usize,
    partitions: usize,
    assignment: Option<Vec<i64>>,
    overrides: Vec<(String, Value)>,
}

impl CompileOptions {
    /// Compiles for `replicas` devices that each run the whole program (`num_replicas`).
    pub fn replicas(replicas: usize) -> Self {
        Self {
            replicas,
            partitions: 1,
            assignment: None,
            overrides: Vec::new(),
        }
    }

    /// Divides the program itself over `partitions` devices per replica (`num_partitions`).
    #[must_use]
    pub fn partitions(mut self, partitions: usize) -> Self {
        self.partitions = partitions;
        self
    }

    /// Names the device of each replica: `ids[replica * partitions + partition]`, global ids.
    ///
    /// Without it the plugin chooses.
    #[must_use]
    pub fn device_assignment(mut self, ids: impl Into<Vec<i64>>) -> Self {
        self.assignment = Some(ids.into());
        self
    }

    /// Changes a flag of XLA or of the TPU compiler for this program only, for instance
    /// `xla_tpu_enable_latency_hiding_scheduler` (`env_option_overrides`).
    ///
    /// A flag that the plugin does not know is an error of the compilation.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.overrides.push((name.into(), value.into()));
        self
    }

    /// Replicas times partitions.
    pub fn num_devices(&self) -> usize {
        self.replicas.saturating_mul(self.partitions)
    }

    /// The bytes of the `CompileOptionsProto`.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        if self.num_devices() == 0 || self.num_devices() > i32::MAX as usize {
            return Err(PjrtError::InvalidArgument(format!(
                "a program is compiled for at least 1 replica and 1 partition, got {} and {}",
                self.replicas, self.partitions
            )));
        }
        let mut build = Message::default();
        // Unset: the device comes from the assignment.
        build.integer(1, u64::MAX);
        build.integer(4, self.replicas as u64);
        build.integer(5, self.partitions as u64);
        if let Some(ids) = &self.assignment {
            build.message(9, &self.encode_assignment(ids)?);
        }
        let mut options = Message::default();
        options.message(3, &build);
        for (name, value) in &self.overrides {
            let mut entry = Message::default();
            entry.bytes(1, name.as_bytes());
            entry.message(2, &encode_override(name, value)?);
            options.message(7, &entry);
        }
        Ok(options.0)
    }

    /// `DeviceAssignmentProto`: one list of replicas per partition.
    fn encode_assignment(&self, ids: &[i64]) -> Result<Message> {
        if ids.len() != self.num_devices() {
            return Err(PjrtError::InvalidArgument(format!(
                "the device assignment names {} devices, but {} replicas of {} partitions need {}",
                ids.len(),
                self.replicas,
                self.partitions,
                self.num_devices()
            )));
        }
        let mut assignment = Message::default();
        assignment.integer(1, self.replicas as u64);
        assignment.integer(2, self.partitions as u64);
        for partition in 0..self.partitions {
            let mut packed = Message::default();
            for id in ids.iter().skip(partition).step_by(self.partitions) {
                packed.varint(*id as u64);
            }
            let mut computation = Message::default();
            computation.message(1, &packed);
            assignment.message(3, &computation);
        }
        Ok(assignment)
    }
}

/// One device, one partition.
impl Default for CompileOptions {
    fn default() -> Self {
        Self::replicas(1)
    }
}

/// `OptionOverrideProto`.
fn encode_override(name: &str, value: &Value) -> Result<Message> {
    let mut message = Message::default();
    match value {
        Value::String(text) => message.bytes(1, text.as_bytes()),
        Value::Bool(yes) => message.integer(2, u64::from(*yes)),
        Value::Int64(number) => message.integer(3, *number as u64),
        Value::Float(number) => message.double(4, f64::from(*number)),
        Value::Int64List(_) => {
            return Err(PjrtError::InvalidArgument(format!(
                "the compiler option {name} cannot be a list; write it as text"
            )));
        }
    }
    Ok(message)
}

/// A protobuf message that is being written. Zeros are written too: that is valid, and for the
/// members of a `oneof` needed.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(options: &CompileOptions) -> String {
        hex::encode(options.encode().unwrap())
    }

    #[test]
    fn replicas_are_what_protoscope_prints() {
        let minus_one = "08ffffffffffffffffff01";
        assert_eq!(
            hex(&CompileOptions::replicas(8)),
            format!("1a0f{minus_one}20082801")
        );
        assert_eq!(
            hex(&CompileOptions::default()),
            format!("1a0f{minus_one}20012801")
        );
        assert_eq!(
            hex(&CompileOptions::replicas(300)),
            format!("1a10{minus_one}20ac022801")
        );
    }

    #[test]
    fn the_assignment_is_one_list_per_partition() {
        let options = CompileOptions::replicas(2)
            .partitions(2)
            .device_assignment([0, 1, 2, 3]);
        let assignment = "08021002".to_string() + "1a040a020002" + "1a040a020103";
        assert!(hex(&options).ends_with(&format!("20022802{}{assignment}", "4a10")));
    }

    #[test]
    fn overrides_are_a_map() {
        let options = CompileOptions::default()
            .option("ab", true)
            .option("c", -1_i64);
        let tail = "3a08".to_string() + "0a026162" + "12021001" + "3a10" + "0a0163" + "120b18";
        assert!(hex(&options).ends_with(&(tail + "ffffffffffffffffff01")));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(CompileOptions::replicas(0).encode().is_err());
        assert!(
            CompileOptions::replicas(usize::MAX)
                .partitions(2)
                .encode()
                .is_err()
        );
        assert!(
            CompileOptions::replicas(2)
                .device_assignment([0])
                .encode()
                .is_err()
        );
        assert!(
            CompileOptions::default()
                .option("x", vec![1_i64])
                .encode()
                .is_err()
        );
    }
}
