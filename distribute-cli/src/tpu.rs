//! `--strategy tpu`: plugin and devices, and compiling for a TPU that the machine does not have.

use std::path::Path;
use std::sync::Arc;

use distribute_core::{Error, Strategy};
use distribute_tpu_xla::pjrt::{Device, ErrorCode, Plugin, PluginSearch, Topology};
use distribute_tpu_xla::stablehlo::Precision;
use distribute_tpu_xla::{
    CompileReport, TpuClusterResolver, TpuCompiler, TpuConnection, TpuError, TpuStrategy,
};
use serde_json::{Value, json};

use crate::compile_watch::{CompileWatch, compiler_bytes};
use crate::events::{EventName, event, line};
use crate::failure::Failure;
use crate::flags::{DeviceArgs, OutputFormat, PrecisionName, TpuArgs};
use crate::libtpu::in_own_process;
use crate::notes::note;
use crate::strategies::device_names;

impl TpuArgs {
    fn precision(&self) -> Precision {
        let given = self.precision_of_matmul;
        given.map_or(Precision::Highest, Precision::from)
    }
}

impl From<PrecisionName> for Precision {
    fn from(name: PrecisionName) -> Self {
        match name {
            PrecisionName::Default => Self::Default,
            PrecisionName::High => Self::High,
            PrecisionName::Highest => Self::Highest,
        }
    }
}

/// The devices on which steps run, or for which they are compiled.
pub(crate) enum Tpu {
    Devices(TpuStrategy, Vec<String>),
    Topology(Ahead),
}

impl Tpu {
    /// Loads the plugin and opens its devices, or makes a compiler from it.
    pub(crate) fn open(
        args: &TpuArgs,
        devices: &DeviceArgs,
        verbose: bool,
    ) -> Result<Self, Failure> {
        if !devices.devices.is_empty() {
            return Err(Failure::usage(
                "--devices names CPUs; with --strategy tpu choose a number of --replicas",
            ));
        }
        if devices.replicas_per_device.is_some() {
            return Err(Failure::usage(
                "--replicas-per-device is for devices that run a step as it is; with --strategy \
                 tpu each device has one replica, choose a number of --replicas",
            ));
        }
        match &args.topology {
            Some(topology) => Self::topology(topology, args, devices.replicas, verbose),
            None => Self::devices(args, devices.replicas),
        }
    }

    fn devices(args: &TpuArgs, replicas: Option<usize>) -> Result<Self, Failure> {
        let resolver = TpuClusterResolver::new(args.tpu.as_deref().unwrap_or_default())?;
        let system = connect(&resolver, args.pjrt_plugin.as_deref())?.initialize()?;
        let said = vec![
            format!("Running on TPU {:?}", resolver.addresses()),
            format!("Number of accelerators: {}", system.num_accelerators()),
        ];
        let mut builder = TpuStrategy::builder(&system).precision_of_matmul(args.precision());
        if let Some(replicas) = replicas {
            builder = builder.replicas(replicas);
        }
        Ok(Self::Devices(builder.build()?, said))
    }

    fn topology(
        name: &str,
        args: &TpuArgs,
        replicas: Option<usize>,
        verbose: bool,
    ) -> Result<Self, Failure> {
        let search = PluginSearch::new(args.pjrt_plugin.as_deref()).topology(name);
        let path = search.find().map_err(not_found)?;
        in_own_process(&path, verbose)?;
        let watch = CompileWatch::new(name, args.dump_stablehlo.as_deref())?;
        let plugin = Plugin::load(&path).map_err(TpuError::from)?;
        let topology = plugin.topology(name, &[]).map_err(TpuError::from)?;
        let compiler =
            TpuCompiler::new(topology.clone(), replicas)?.precision_of_matmul(args.precision());
        note(&format!("capturing the step for {name}"));
        let watch = Arc::new(watch);
        let told = Arc::clone(&watch);
        compiler.observe(move |progress| told.on_progress(progress));
        Ok(Self::Topology(Ahead {
            compiler,
            topology,
            watch,
        }))
    }

    pub(crate) fn strategy(&self) -> Arc<dyn Strategy> {
        match self {
            Self::Devices(strategy, _) => strategy.handle(),
            Self::Topology(ahead) => ahead.compiler.handle(),
        }
    }

    /// The plugin's names of the replicas' devices.
    pub(crate) fn device_names(&self) -> Vec<String> {
        match self {
            Self::Devices(strategy, _) => strategy.devices().iter().map(name).collect(),
            Self::Topology(ahead) => device_names(&*ahead.compiler.handle()),
        }
    }

    /// A description of the system.
    pub(crate) fn description(&self) -> Vec<String> {
        match self {
            Self::Devices(_, said) => said.clone(),
            Self::Topology(_) => Vec::new(),
        }
    }
}

/// The plugin's name of a device, or its kind and number if it has none.
fn name(device: &Device) -> String {
    let text = device.description().text.trim();
    if text.is_empty() {
        format!("{} {}", device.kind(), device.id())
    } else {
        text.to_string()
    }
}

/// Loads the plugin of the TPU, or returns an error with the searched places.
pub(crate) fn connect(
    resolver: &TpuClusterResolver,
    plugin: Option<&Path>,
) -> Result<TpuConnection, Failure> {
    resolver.connect_with(plugin).map_err(not_found)
}

fn not_found(error: impl Into<TpuError>) -> Failure {
    let error = error.into();
    let searched = error.searched().to_vec();
    Failure::from(error).with_details(searched)
}

/// Steps that are compiled for a TPU that the machine does not have.
pub(crate) struct Ahead {
    compiler: TpuCompiler,
    topology: Topology,
    watch: Arc<CompileWatch>,
}

impl Ahead {
    /// The compiler's report about the first step; `None` if there was no step.
    pub(crate) fn report(&self) -> Result<Option<CompileReport>, Failure> {
        self.watch.check()?;
        let programs = self.compiler.programs();
        let report = programs
            .first()
            .map(|program| CompileReport::new(program, &self.topology));
        Ok(report.transpose()?)
    }
}

/// Why there is no program; with advice if the program does not fit into a core's memory.
pub(crate) fn not_compiled(error: Error) -> Failure {
    let code = match TpuError::of(&error) {
        Some(TpuError::Pjrt(error)) => error.code(),
        _ => None,
    };
    match code {
        Some(ErrorCode::ResourceExhausted) => Failure::refused(format!(
            "does not fit: {error}; use more replicas, a smaller --batch-size or a smaller model"
        )),
        _ => error.into(),
    }
}

/// Prints the compiler's report about the job's step.
pub(crate) fn print(report: &CompileReport, output: OutputFormat) -> Result<(), Failure> {
    if output == OutputFormat::Json {
        return line(&json_report(report));
    }
    let mib = |bytes: i64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let count = |number: Option<f64>| number.map_or("-".to_string(), |n| format!("{n:.3e}"));
    let memory = &report.memory;
    line(&format!(
        "{} ({}, {} devices): compiled for {} replicas",
        report.topology, report.device_kind, report.devices, report.replicas
    ))?;
    line(&format!(
        "a step of one core: {} FLOPs, {} bytes",
        count(report.flops),
        count(report.bytes_accessed)
    ))?;
    line(&format!(
        "memory of one core: arguments {}, results {} ({} of them in place of arguments), \
         temporary {}, program {}",
        mib(memory.argument_bytes),
        mib(memory.output_bytes),
        mib(memory.alias_bytes),
        mib(memory.temp_bytes),
        mib(memory.generated_code_bytes)
    ))?;
    line(&format!("at most at a time: {}", mib(report.peak_bytes())))?;
    let compiler = compiler_bytes().map_or(String::new(), |bytes| {
        format!(", with at most {} of memory", mib(bytes))
    });
    line(&format!(
        "compiled in {:.1} s{compiler}",
        report.compile_time.as_secs_f64()
    ))?;
    line(&estimates(report))?;
    line(&format!("collectives: {}", collectives(report)))?;
    line(&match (report.fits(), report.memory_limit_bytes) {
        (Some(true), Some(limit)) => {
            format!("fits: {} of {}", mib(report.memory_bytes()), mib(limit))
        }
        (Some(false), Some(limit)) => format!(
            "does not fit: {} of {}; use more replicas or smaller batches",
            mib(report.memory_bytes()),
            mib(limit)
        ),
        _ => format!(
            "needs {}; the topology does not say how much a core has",
            mib(report.memory_bytes())
        ),
    })
}

/// The compiler's estimate of a step.
fn estimates(report: &CompileReport) -> String {
    let time = report
        .estimated_time
        .map(|time| format!("{:.1} us", time.as_secs_f64() * 1e6));
    let cycles = report
        .estimated_cycles
        .map(|cycles| format!("{cycles} cycles in all operations"));
    let both: Vec<String> = time.into_iter().chain(cycles).collect();
    if both.is_empty() {
        "the compiler's estimate of a step: none".to_string()
    } else {
        format!("the compiler's estimate of a step: {}", both.join(", "))
    }
}

fn collectives(report: &CompileReport) -> String {
    let names: Vec<_> = report
        .collectives
        .iter()
        .map(|(name, n)| format!("{n} {name}"))
        .collect();
    if names.is_empty() {
        "none".to_string()
    } else {
        names.join(", ")
    }
}

fn json_report(report: &CompileReport) -> String {
    let memory = &report.memory;
    let collectives: serde_json::Map<String, Value> = report
        .collectives
        .iter()
        .map(|(name, count)| ((*name).to_string(), json!(count)))
        .collect();
    event(
        EventName::Compiled,
        [
            ("topology", json!(report.topology)),
            ("device_kind", json!(report.device_kind)),
            ("devices", json!(report.devices)),
            ("replicas", json!(report.replicas)),
            ("flops", json!(report.flops)),
            ("bytes_accessed", json!(report.bytes_accessed)),
            ("argument_bytes", json!(memory.argument_bytes)),
            ("output_bytes", json!(memory.output_bytes)),
            ("alias_bytes", json!(memory.alias_bytes)),
            ("donated_bytes", json!(report.donated_bytes)),
            ("temp_bytes", json!(memory.temp_bytes)),
            ("generated_code_bytes", json!(memory.generated_code_bytes)),
            ("memory_bytes", json!(report.memory_bytes())),
            ("peak_bytes", json!(report.peak_bytes())),
            ("compile_seconds", json!(report.compile_time.as_secs_f64())),
            ("compiler_peak_bytes", json!(compiler_bytes())),
            (
                "estimated_seconds",
                json!(report.estimated_time.map(|time| time.as_secs_f64())),
            ),
            ("estimated_cycles", json!(report.estimated_cycles)),
            ("memory_limit_bytes", json!(report.memory_limit_bytes)),
            ("fits", json!(report.fits())),
            ("collectives", Value::Object(collectives)),
        ],
    )
}
