//! Runs the golden cases against strategies and communicators.

use std::collections::BTreeSet;
use std::iter;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use distribute_error::panic_text;
use distribute_tpu_xla::TpuError;

use crate::backend::Backend;
use crate::case::{Case, Expected, StrategyKind};
use crate::env::Env;
use crate::families;
use crate::golden::{FamilyName, Golden, GoldenFile};
use crate::group::{self, CommunicatorFactory, OverCommunicator};
use crate::job::Jobs;
use crate::outcome::{Checked, Failure, Outcome, Rule};
use crate::program::WorkerProgram;
use crate::report::{CaseResult, Report};
use crate::tpu;

/// The name of the strategy that worker processes run.
pub(crate) const MULTI_WORKER: &str = "multi-worker";
/// The strategy whose cases need parameter servers, which they start.
pub(crate) const PARAMETER_SERVER: &str = "parameter-server";

type Selected<'a> = (FamilyName, &'a GoldenFile, &'a Case);

/// Golden files, and what is checked against them.
///
/// A case counts once. It passes if it passes under everything that it applies to: every backend
/// of its strategy's kind and, if its numbers travel between replicas, every communicator.
#[must_use]
pub struct Suite {
    golden: Golden,
    backends: Vec<Backend>,
    communicators: Vec<Arc<dyn CommunicatorFactory>>,
    families: BTreeSet<FamilyName>,
    with_functions: bool,
    with_servers: bool,
    /// Whether everything was selected, so that each case has to be run.
    is_everything: bool,
    /// Strategies and communicators that this machine lacks, and why.
    missing: Vec<String>,
    workers: Option<WorkerProgram>,
    jobs: Jobs,
}

impl Suite {
    /// A suite that checks nothing yet.
    pub fn new(golden: Golden) -> Self {
        Self {
            golden,
            backends: Vec::new(),
            communicators: Vec::new(),
            families: BTreeSet::new(),
            with_functions: false,
            with_servers: false,
            is_everything: false,
            missing: Vec::new(),
            workers: None,
            jobs: Jobs::default(),
        }
    }

    /// Checks everything this workspace has on every machine: all strategies but
    /// [`TpuStrategy`](Self::tpu), all communicators, and the functions that need neither.
    pub fn everything(golden: Golden) -> Self {
        let mut suite = Self::new(golden).functions().parameter_servers();
        suite.backends = Backend::built_in();
        suite.communicators = group::built_in();
        suite.is_everything = true;
        suite
    }

    /// The communicators of `distribute-collectives`, for picking some by name.
    pub fn built_in_communicators() -> Vec<Arc<dyn CommunicatorFactory>> {
        group::built_in()
    }

    /// Also checks a strategy.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backends.push(backend);
        self
    }

    /// Also checks `TpuStrategy` with the cases that it gets (see the README), under the PJRT
    /// plugin that a [`PluginSearch`](distribute_tpu_xla::pjrt::PluginSearch) finds. Without one,
    /// the report says that it was skipped, and where it was looked for.
    ///
    /// # Errors
    /// If there is a plugin, and it cannot be loaded or has no devices.
    pub fn tpu(self) -> Result<Self, TpuError> {
        match tpu::plugin() {
            Ok(plugin) => Ok(self.backend(tpu::backend(&plugin)?)),
            Err(why) => Ok(self.skipped(tpu::TPU, &why)),
        }
    }

    /// As [`tpu`](Self::tpu), and where a plugin is there that has no devices on this machine (as
    /// libtpu has none without a TPU), that too is said in the report.
    pub fn tpu_if_it_works(self) -> Self {
        match tpu::plugin() {
            Ok(plugin) => match tpu::backend(&plugin) {
                Ok(backend) => self.backend(backend),
                Err(error) => self.skipped(tpu::TPU, &format!("{}: {error}", plugin.display())),
            },
            Err(why) => self.skipped(tpu::TPU, &why),
        }
    }

    /// Says in the report that a subject is not there.
    pub(crate) fn skipped(mut self, subject: &str, why: &str) -> Self {
        self.missing.push(format!("{subject}: {why}"));
        self
    }

    /// Also checks a communicator: alone, and under `MirroredStrategy`.
    pub fn communicator(mut self, factory: Arc<dyn CommunicatorFactory>) -> Self {
        self.communicators.push(factory);
        self
    }

    /// Also checks the functions that need no strategy: packing, auto-sharding, partitioners,
    /// cluster resolvers.
    pub fn functions(mut self) -> Self {
        self.with_functions = true;
        self
    }

    /// Also checks `ParameterServerStrategy` and its coordinator, with servers and workers that
    /// listen on loopback ports.
    pub fn parameter_servers(mut self) -> Self {
        self.with_servers = true;
        self
    }

    /// Also checks what happens between workers, in processes of this program.
    pub fn workers(mut self, program: impl Into<Option<WorkerProgram>>) -> Self {
        self.workers = program.into();
        self
    }

    /// Runs this family; without a call all families run. Calls add up.
    pub fn family(mut self, family: FamilyName) -> Self {
        self.families.insert(family);
        self
    }

    /// The names of everything that is checked: strategies, then communicators.
    pub fn subjects(&self) -> (Vec<&str>, Vec<&str>) {
        let backends = self.backends.iter().map(Backend::name);
        let workers = self.workers.iter().map(|_| MULTI_WORKER);
        let servers = self.with_servers.then_some(PARAMETER_SERVER);
        let communicators = self.communicators.iter().map(|factory| factory.name());
        let strategies = backends.chain(workers).chain(servers);
        (strategies.collect(), communicators.collect())
    }

    /// Runs all cases, as many at a time as there are cores.
    pub fn run(&self) -> Report {
        let mut selected = Vec::new();
        let (strategies, communicators) = self.subjects();
        let mut report = Report::of(&self.golden, strategies, communicators);
        report.missing(self.missing.clone());
        for (family, file) in &self.golden.files {
            if !self.families.is_empty() && !self.families.contains(family) {
                report.not_selected(file.cases.len());
                continue;
            }
            let is_selected = match family {
                FamilyName::MultiWorker => self.workers.is_some() || self.is_everything,
                FamilyName::ParameterServer => self.with_servers,
                _ => true,
            };
            if !is_selected {
                report.not_run(*family, file.cases.len());
                continue;
            }
            selected.extend(file.cases.iter().map(|case| (*family, file, case)));
        }
        for ((family, _, case), result) in selected.iter().zip(self.results(&selected)) {
            report.add(*family, case, result);
        }
        report
    }

    /// The results of these cases, in their order. Many cases wait for processes or threads.
    fn results(&self, selected: &[Selected<'_>]) -> Vec<CaseResult> {
        let next = AtomicUsize::new(0);
        let some = || {
            let indices = iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            let mine = indices.map_while(|index| Some((index, *selected.get(index)?)));
            let run = |(index, (family, file, case))| (index, self.result(family, file, case));
            mine.map(run).collect::<Vec<_>>()
        };
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let mut results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..cores).map(|_| scope.spawn(some)).collect();
            let results = threads.into_iter().map(|thread| thread.join());
            results
                .flat_map(|some| some.unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// The result of a case. Where everything is selected, a case that is not run has failed.
    fn result(&self, family: FamilyName, file: &GoldenFile, case: &Case) -> CaseResult {
        let Some(check) = families::adapter(family) else {
            return not_run("its file is called like no family, so nothing can run it");
        };
        if family == FamilyName::MultiWorker && self.workers.is_none() {
            return CaseResult::Checked(Outcome::NotApplicable(Rule::NoWorkers));
        }
        match (self.run_case(family, file, case, check), &case.expected) {
            (CaseResult::NotSelected, Expected::Unavailable(_)) if self.is_everything => {
                CaseResult::Checked(Outcome::NotApplicable(Rule::Crash))
            }
            (CaseResult::NotSelected, _) if self.is_everything => not_run(&format!(
                "nothing that is checked runs a case of the strategy `{}`",
                case.strategy.kind
            )),
            (result, _) => result,
        }
    }

    fn env<'a>(&'a self, file: &'a GoldenFile, backend: Option<&'a Backend>) -> Env<'a> {
        Env {
            file,
            backend,
            backends: &self.backends,
            workers: self.workers.as_ref(),
            jobs: &self.jobs,
        }
    }

    fn run_case(
        &self,
        family: FamilyName,
        file: &GoldenFile,
        case: &Case,
        check: families::Adapter,
    ) -> CaseResult {
        if let Expected::Unavailable(_) = case.expected {
            let mut backends = self.backends.iter();
            let is_selected = backends.any(|backend| backend.takes(family, case));
            return if is_selected {
                CaseResult::Checked(Outcome::NotApplicable(Rule::Crash))
            } else {
                CaseResult::NotSelected
            };
        }
        let mut outcome = None;
        let mut note = |subject: &str, checked: Checked| match checked {
            Ok(found) => {
                outcome.get_or_insert(found);
                Ok(())
            }
            Err(failure) => Err(CaseResult::Failed(subject.to_string(), failure)),
        };
        let result = (|| {
            if !families::needs_strategy(family, case) {
                let of_servers = case.strategy.kind == StrategyKind::ParameterServer;
                let subject = match family {
                    FamilyName::ParameterServer => Some(PARAMETER_SERVER),
                    FamilyName::MultiWorker => Some(MULTI_WORKER),
                    _ if of_servers => self.with_servers.then_some(PARAMETER_SERVER),
                    _ => self.with_functions.then_some("the library"),
                };
                if let Some(subject) = subject {
                    note(subject, guarded(|| check(case, &self.env(file, None))))?;
                }
                return Ok(());
            }
            let takes = |backend: &&Backend| backend.takes(family, case);
            for backend in self.backends.iter().filter(takes) {
                let run = || guarded(|| check(case, &self.env(file, Some(backend))));
                let checked = match backend.not_applicable(family, case) {
                    Some(Rule::FewDevices) => Ok(Outcome::NotApplicable(Rule::FewDevices)),
                    rule => refused(rule, run()),
                };
                note(backend.name(), checked)?;
            }
            for factory in &self.communicators {
                if families::communicator::under_strategy(family, case) {
                    let backend = Backend::new(OverCommunicator(Arc::clone(factory)));
                    let name = format!("mirrored over {}", factory.name());
                    note(
                        &name,
                        guarded(|| check(case, &self.env(file, Some(&backend)))),
                    )?;
                }
                let alone = || families::communicator::check(family, case, file, &**factory);
                match guarded_option(alone) {
                    Some(checked) => note(factory.name(), checked)?,
                    None => continue,
                }
            }
            Ok(())
        })();
        match result {
            Err(failed) => failed,
            Ok(()) => outcome.map_or(CaseResult::NotSelected, CaseResult::Checked),
        }
    }
}

/// A case that was not run, which is a failure.
fn not_run(why: &str) -> CaseResult {
    let failure = Failure::new("a case that is run", why);
    CaseResult::Failed("nothing".to_string(), failure)
}

/// A case that does not apply is refused by the strategy, as a compiled step says it; else it is
/// like any other.
fn refused(rule: Option<Rule>, checked: Checked) -> Checked {
    let words = |rule| match rule {
        Rule::IntegerMean => ["not defined for elements of type i"; 2],
        _ => ["compiled step", "is captured"],
    };
    let says_so = |rule, text: &str| words(rule).iter().any(|word| text.contains(word));
    match (rule, checked) {
        (Some(rule), Err(failure)) if says_so(rule, &failure.got) => {
            Ok(Outcome::NotApplicable(rule))
        }
        (_, checked) => checked,
    }
}

fn guarded(check: impl FnOnce() -> Checked) -> Checked {
    guarded_option(|| Some(check())).unwrap_or_else(|| Err(Failure::got("nothing")))
}

/// Turns a panic into a failure, so that one case does not end the run.
fn guarded_option(check: impl FnOnce() -> Option<Checked>) -> Option<Checked> {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(checked) => checked,
        Err(payload) => Some(Err(Failure::got(format!(
            "a panic: {}",
            panic_text(&*payload).unwrap_or("without a message")
        )))),
    }
}
