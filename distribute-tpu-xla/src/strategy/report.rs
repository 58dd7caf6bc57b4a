//! What a step costs on a TPU, before there is one.

use std::time::Duration;

use super::{CompiledProgram, TpuError};
use crate::pjrt::{CompiledMemoryStats, Program, Topology, Value};

/// The attribute of a TPU core's description that holds the size of its memory.
const MEMORY_LIMIT: &str = "device_memory_bytes_limit";

/// Operations between cores, as XLA calls them.
const COLLECTIVES: [&str; 9] = [
    "all-reduce",
    "all-reduce-start",
    "all-gather",
    "all-gather-start",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-permute-start",
    "collective-broadcast",
];

/// The compiler's report about a step.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompileReport {
    /// The topology's name.
    pub topology: String,
    /// The kind of its devices, such as `TPU v5 lite`.
    pub device_kind: String,
    /// The devices of the topology.
    pub devices: usize,
    /// The replicas of the program.
    pub replicas: usize,
    /// Floating-point operations of one step on one core, if the compiler counts them.
    pub flops: Option<f64>,
    /// Bytes read and written in one step on one core, if the compiler counts them.
    pub bytes_accessed: Option<f64>,
    /// What the TPU compiler takes its fused operations to need, added up: `estimated_cycles` in
    /// the optimized program. `None` if it says nothing of that.
    pub estimated_cycles: Option<u64>,
    /// Sizes in bytes, per core.
    pub memory: CompiledMemoryStats,
    /// The memory of one core, if the topology tells it.
    pub memory_limit_bytes: Option<i64>,
    /// Bytes of the training state, which the step's new state takes over.
    pub donated_bytes: usize,
    /// Operations between cores in the compiled program, by XLA's name, and how many.
    pub collectives: Vec<(&'static str, usize)>,
    /// How long the compiler took.
    pub compile_time: Duration,
    /// The compiler's own estimate of a step's time on one core, if it makes one.
    pub estimated_time: Option<Duration>,
}

impl CompileReport {
    /// Asks the compiler about a program that was compiled for a topology.
    ///
    /// # Errors
    /// The plugin's own, where it has no memory sizes or no optimized program.
    pub fn new(program: &CompiledProgram, topology: &Topology) -> Result<Self, TpuError> {
        let executable = &program.executable;
        // Not every compiler counts; a missing count is not an error of the step.
        let cost = executable.cost_analysis().unwrap_or_default();
        let number = |name: &str| cost.get(name).and_then(Value::as_f64);
        let optimized = executable.optimized_program()?;
        let devices = topology.devices();
        let first = devices.first();
        let limit = first.and_then(|device| device.attributes.get(MEMORY_LIMIT));
        Ok(Self {
            topology: topology.name().to_string(),
            device_kind: first.map_or(String::new(), |device| device.kind.clone()),
            devices: devices.len(),
            replicas: program.replicas,
            flops: number("flops"),
            bytes_accessed: number("bytes accessed"),
            estimated_cycles: estimated_cycles(&optimized),
            memory: executable.memory_stats()?,
            memory_limit_bytes: limit.and_then(Value::as_i64),
            donated_bytes: program.donated_bytes,
            collectives: collectives(&optimized),
            compile_time: program.compile_time,
            // A negative number or none says that there is no estimate.
            estimated_time: number("optimal_seconds")
                .filter(|seconds| *seconds > 0.0)
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        })
    }

    /// The most memory that one core needs at any moment of a step: what the compiler says, or
    /// else [all of it](Self::memory_bytes).
    pub fn peak_bytes(&self) -> i64 {
        match self.memory.peak_bytes {
            0 => self.memory_bytes(),
            peak => peak,
        }
    }

    /// The memory that one core needs for a step: arguments, results that take over no argument,
    /// temporaries and the program.
    pub fn memory_bytes(&self) -> i64 {
        let memory = &self.memory;
        memory.argument_bytes + memory.output_bytes - memory.alias_bytes
            + memory.temp_bytes
            + memory.generated_code_bytes
    }

    /// Whether a core has that memory; `None` where it is not known. A step that does not fit is
    /// mostly refused by the compiler already.
    pub fn fits(&self) -> Option<bool> {
        self.memory_limit_bytes
            .map(|limit| self.memory_bytes() <= limit)
    }
}

/// How often each collective operation stands in an optimized program. In a serialized HLO module
/// field 2 of an instruction is the name of its operation, as its length and its letters.
fn collectives(program: &Program) -> Vec<(&'static str, usize)> {
    let count = |name: &&'static str| {
        let mut field = vec![0x12, u8::try_from(name.len()).unwrap_or(u8::MAX)];
        field.extend(name.bytes());
        let windows = program.code.windows(field.len());
        (*name, windows.filter(|window| *window == field).count())
    };
    let counted = COLLECTIVES.iter().map(count);
    counted.filter(|(_, count)| *count > 0).collect()
}

/// The estimates that a TPU's compiler leaves beside each operation of an optimized program, as
/// JSON in its serialized form: `"estimated_cycles":"1234"`.
fn estimated_cycles(program: &Program) -> Option<u64> {
    const KEY: &[u8] = br#""estimated_cycles":"#;
    let code = &program.code;
    let mut sum = None;
    let mut from = 0;
    while let Some(found) = code[from..].windows(KEY.len()).position(|part| part == KEY) {
        from += found + KEY.len();
        let digits = code[from..]
            .iter()
            .skip_while(|byte| b" \"".contains(byte))
            .take_while(|byte| byte.is_ascii_digit());
        let cycles = digits.fold(0_u64, |number, digit| {
            number
                .saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'))
        });
        sum = Some(sum.unwrap_or(0_u64).saturating_add(cycles));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_summed() {
        let program = |code: &str| Program {
            format: "hlo".to_string(),
            code: code.as_bytes().to_vec(),
        };
        let two = r#"x{"flag":1,"estimated_cycles":"1200"}y"estimated_cycles": 34,"#;
        assert_eq!(estimated_cycles(&program(two)), Some(1234));
        assert_eq!(estimated_cycles(&program("\"estimated_cycles\":")), Some(0));
        assert_eq!(estimated_cycles(&program("nothing")), None);
    }

    #[test]
    fn collectives_are_counted_by_operation_and_not_by_name() {
        let mut code = Vec::new();
        let mut field = |tag: u8, text: &str| {
            code.extend([tag, u8::try_from(text.len()).unwrap()]);
            code.extend(text.bytes());
        };
        field(0x0a, "all-reduce"); // an instruction that is called so
        field(0x12, "all-reduce");
        field(0x0a, "all-reduce.7");
        field(0x12, "all-reduce");
        field(0x12, "all-reduce-start");
        field(0x12, "fusion");
        let program = Program {
            format: "hlo".to_string(),
            code,
        };
        let expected = [("all-reduce", 2), ("all-reduce-start", 1)];
        assert_eq!(collectives(&program), expected);
    }
}
