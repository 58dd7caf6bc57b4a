//! The results of a run.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::case::{Case, Expected};
use crate::golden::{FamilyName, Golden};
use crate::outcome::{Deviation, Failure, Outcome, Rule};

/// The result of a case.
pub(crate) enum CaseResult {
    Checked(Outcome),
    /// The strategy or communicator under which the case failed, and why.
    Failed(String, Failure),
    /// The case has nothing to do with what was selected.
    NotSelected,
}

/// The numbers of a family's cases by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FamilyCounts {
    /// Cases with TensorFlow's result.
    pub passed: usize,
    /// Cases with the other result that a [`Deviation`] explains.
    pub deviations: usize,
    /// Cases with any other result.
    pub failed: usize,
    /// Cases that record a result and do not apply.
    pub skipped_values: usize,
    /// Cases that record an error or a crash and do not apply.
    pub skipped_errors: usize,
}

impl FamilyCounts {
    /// Cases that do not apply.
    pub fn skipped(&self) -> usize {
        self.skipped_values + self.skipped_errors
    }

    /// All cases.
    pub fn cases(&self) -> usize {
        self.passed + self.deviations + self.failed + self.skipped()
    }

    fn plus(mut self, other: &Self) -> Self {
        self.passed += other.passed;
        self.deviations += other.deviations;
        self.failed += other.failed;
        self.skipped_values += other.skipped_values;
        self.skipped_errors += other.skipped_errors;
        self
    }
}

/// A case that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedCase {
    /// The family of the case.
    pub family: FamilyName,
    /// The name of the case.
    pub name: String,
    /// The strategy or communicator it failed under.
    pub subject: String,
    /// TensorFlow's result.
    pub expected: String,
    /// This library's result.
    pub got: String,
}

/// The outcome of a run. `Display` is the table for people; its last line is
/// `N passed, N failed, N skipped`, where the deviations count as passed.
#[derive(Debug, Clone)]
pub struct Report {
    source: String,
    /// How many cases the files hold.
    cases: usize,
    strategies: Vec<String>,
    communicators: Vec<String>,
    families: BTreeMap<FamilyName, FamilyCounts>,
    rules: BTreeMap<Rule, usize>,
    deviations: BTreeMap<Deviation, usize>,
    failures: Vec<FailedCase>,
    not_run: BTreeMap<FamilyName, usize>,
    not_selected: usize,
    missing: Vec<String>,
}

impl Report {
    pub(crate) fn of(golden: &Golden, strategies: Vec<&str>, communicators: Vec<&str>) -> Self {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_string).collect();
        Self {
            source: golden.source.clone(),
            cases: golden.cases(),
            strategies: owned(strategies),
            communicators: owned(communicators),
            families: BTreeMap::new(),
            rules: BTreeMap::new(),
            deviations: BTreeMap::new(),
            failures: Vec::new(),
            not_run: BTreeMap::new(),
            not_selected: 0,
            missing: Vec::new(),
        }
    }

    pub(crate) fn not_run(&mut self, family: FamilyName, cases: usize) {
        self.not_run.insert(family, cases);
        self.not_selected += cases;
    }

    pub(crate) fn not_selected(&mut self, cases: usize) {
        self.not_selected += cases;
    }

    pub(crate) fn missing(&mut self, subjects: Vec<String>) {
        self.missing = subjects;
    }

    pub(crate) fn add(&mut self, family: FamilyName, case: &Case, result: CaseResult) {
        if matches!(result, CaseResult::NotSelected) {
            self.not_selected += 1;
            return;
        }
        let counts = self.families.entry(family).or_default();
        match result {
            CaseResult::Checked(Outcome::Passed) => counts.passed += 1,
            CaseResult::Checked(Outcome::Deviation(deviation)) => {
                counts.deviations += 1;
                *self.deviations.entry(deviation).or_default() += 1;
            }
            CaseResult::Checked(Outcome::NotApplicable(rule)) => {
                if case.expects_value() {
                    counts.skipped_values += 1;
                } else {
                    counts.skipped_errors += 1;
                }
                *self.rules.entry(rule).or_default() += 1;
            }
            CaseResult::Failed(subject, failure) => {
                counts.failed += 1;
                self.failures.push(failed(family, case, subject, failure));
            }
            CaseResult::NotSelected => {}
        }
    }

    /// Whether nothing failed, and something was checked.
    pub fn is_success(&self) -> bool {
        let checked = self.total();
        self.failures.is_empty() && checked.passed + checked.deviations > 0
    }

    /// How many cases the files hold: those in [`total`](Self::total) and those that have nothing
    /// to do with what was selected.
    pub fn cases_in_files(&self) -> usize {
        self.cases
    }

    /// How many cases have nothing to do with what was selected.
    pub fn cases_not_selected(&self) -> usize {
        self.not_selected
    }

    /// The counts of all families together.
    pub fn total(&self) -> FamilyCounts {
        let none = FamilyCounts::default();
        self.families.values().fold(none, FamilyCounts::plus)
    }

    /// The counts of every family that ran.
    pub fn families(&self) -> &BTreeMap<FamilyName, FamilyCounts> {
        &self.families
    }

    /// How many cases do not apply, by rule.
    pub fn rules(&self) -> &BTreeMap<Rule, usize> {
        &self.rules
    }

    /// How many cases have another result on purpose, by deviation.
    pub fn deviations(&self) -> &BTreeMap<Deviation, usize> {
        &self.deviations
    }

    /// The cases that failed, in the order of the files.
    pub fn failures(&self) -> &[FailedCase] {
        &self.failures
    }

    /// Families that need processes which were not selected, and how many cases they have.
    pub fn families_not_run(&self) -> &BTreeMap<FamilyName, usize> {
        &self.not_run
    }

    /// Strategies that could not be checked on this machine, each with the reason and what to do.
    pub fn skipped_subjects(&self) -> &[String] {
        &self.missing
    }

    /// The report as JSON, one object.
    pub fn to_json(&self) -> Value {
        let counts = |counts: &FamilyCounts| {
            json!({
                "cases": counts.cases(),
                "passed": counts.passed,
                "deviations": counts.deviations,
                "failed": counts.failed,
                "skipped": counts.skipped(),
                "skipped_errors": counts.skipped_errors,
            })
        };
        let families = self.families.iter();
        let families: serde_json::Map<_, _> = families
            .map(|(family, found)| (family.to_string(), counts(found)))
            .collect();
        let failures = self.failures.iter().map(|failed| {
            json!({
                "family": failed.family.name(),
                "name": failed.name,
                "subject": failed.subject,
                "expected": failed.expected,
                "got": failed.got,
            })
        });
        let not_run: BTreeMap<_, _> = self.not_run.iter().map(|(f, n)| (f.name(), n)).collect();
        json!({
            "golden": self.source,
            "cases_in_files": self.cases,
            "strategies": self.strategies,
            "communicators": self.communicators,
            "families": families,
            "not_applicable": reasons(&self.rules, Rule::name, Rule::reason),
            "deviations": reasons(&self.deviations, Deviation::name, Deviation::reason),
            "not_run": not_run,
            "not_selected": self.not_selected,
            "skipped_subjects": self.missing,
            "failures": failures.collect::<Vec<_>>(),
            "total": counts(&self.total()),
        })
    }
}

fn reasons<K: Copy>(
    counts: &BTreeMap<K, usize>,
    name: fn(K) -> &'static str,
    reason: fn(K) -> &'static str,
) -> Vec<Value> {
    let entry = |(key, count): (&K, &usize)| json!({"name": name(*key), "reason": reason(*key), "cases": count});
    counts.iter().map(entry).collect()
}

fn failed(family: FamilyName, case: &Case, subject: String, failure: Failure) -> FailedCase {
    let of_case = || match &case.expected {
        Expected::Value(value) => value.to_string(),
        Expected::Error { class, message } => format!("{class}: {message}"),
        Expected::Unavailable(text) => text.clone(),
    };
    let at = |text: String| match failure.at.as_str() {
        "" => text,
        place => format!("{place}: {text}"),
    };
    FailedCase {
        family,
        name: case.name.clone(),
        subject,
        expected: shortened(at(failure.expected.clone().unwrap_or_else(of_case))),
        got: shortened(at(failure.got.clone())),
    }
}

/// Shortens a value for a line of the table.
fn shortened(text: String) -> String {
    const LIMIT_CHARS: usize = 300;
    let text = text.replace('\n', " ");
    if text.chars().count() <= LIMIT_CHARS {
        return text;
    }
    let kept: String = text.chars().take(LIMIT_CHARS).collect();
    format!("{kept} ...")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "golden files:  {} ({} cases)", self.source, self.cases)?;
        writeln!(f, "strategies:    {}", list(&self.strategies))?;
        writeln!(f, "communicators: {}\n", list(&self.communicators))?;
        writeln!(
            f,
            "{:16} cases  passed  deviations  failed  not applicable",
            "family"
        )?;
        let total = ("total".to_string(), self.total());
        let rows = self
            .families
            .iter()
            .map(|(family, counts)| (family.to_string(), *counts));
        for (name, counts) in rows.chain([total]) {
            let FamilyCounts {
                passed,
                deviations,
                failed,
                ..
            } = counts;
            let (cases, skipped) = (counts.cases(), counts.skipped());
            writeln!(
                f,
                "{name:16} {cases:5}  {passed:6}  {deviations:10}  {failed:6}  {skipped:14}"
            )?;
        }
        section(
            f,
            "not applicable, by rule",
            &self.rules,
            Rule::name,
            Rule::reason,
        )?;
        let (name, reason) = (Deviation::name, Deviation::reason);
        section(f, "deviations", &self.deviations, name, reason)?;
        for (family, cases) in &self.not_run {
            writeln!(
                f,
                "\nnot run: the {cases} cases of {family}, which need several processes"
            )?;
        }
        for subject in &self.missing {
            writeln!(f, "\nSKIPPED {subject}")?;
        }
        if self.not_selected > 0 {
            writeln!(
                f,
                "\nnot selected: {} cases of other subjects and families",
                self.not_selected
            )?;
        }
        for case in &self.failures {
            writeln!(
                f,
                "\nfailed: {}/{} under {}",
                case.family, case.name, case.subject
            )?;
            writeln!(f, "  expected {}\n  got      {}", case.expected, case.got)?;
        }
        let total = self.total();
        writeln!(
            f,
            "\n{} passed, {} failed, {} skipped",
            total.passed + total.deviations,
            total.failed,
            total.skipped()
        )
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_string();
    }
    names.join(", ")
}

fn section<K: Copy>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    counts: &BTreeMap<K, usize>,
    name: fn(K) -> &'static str,
    reason: fn(K) -> &'static str,
) -> fmt::Result {
    if counts.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}:")?;
    for (key, count) in counts {
        writeln!(f, "{count:6}  {:16} {}", name(*key), reason(*key))?;
    }
    Ok(())
}
