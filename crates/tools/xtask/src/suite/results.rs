//! Reads what test programs print: counts, what was skipped, and which tests failed.

/// The lines that are kept of what a failed test printed, the last ones.
const LINES: usize = 30;

/// Leaves out what tests that passed have printed, but for the reasons why they were skipped.
#[derive(Debug, Default)]
pub(super) struct Filter {
    of_passed: bool,
}

impl Filter {
    pub(super) fn shows(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.of_passed = true,
            "failures:" => self.of_passed = false,
            _ if line.starts_with("test result: ") => self.of_passed = false,
            _ => {}
        }
        !self.of_passed || line.starts_with("SKIPPED")
    }
}

/// A test that failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) name: String,
    /// The last lines that it printed.
    printed: Vec<String>,
}

/// Collects the tests that failed, from the part of a program's output that is headed `failures:`.
#[derive(Debug, Default)]
pub(super) struct Failures {
    inside: bool,
    /// What follows is a backtrace, which would displace the reason.
    in_backtrace: bool,
    tests: Vec<Failure>,
}

impl Failures {
    pub(super) fn read(&mut self, line: &str) {
        if line == "failures:" {
            // The second part of this name is the list of the names alone.
            self.inside = !self.inside;
        } else if line.starts_with("test result: ") {
            self.inside = false;
        } else if self.inside {
            self.read_printed(line);
        }
    }

    fn read_printed(&mut self, line: &str) {
        let name = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        self.in_backtrace = name.is_none() && (self.in_backtrace || line == "stack backtrace:");
        if let Some(name) = name {
            self.tests.push(Failure {
                name: name.to_owned(),
                printed: Vec::new(),
            });
        } else if let Some(test) = self.tests.last_mut().filter(|_| !self.in_backtrace) {
            test.printed.push(line.to_owned());
            if test.printed.len() > LINES {
                test.printed.remove(0);
            }
        }
    }

    pub(super) fn into_tests(self) -> Vec<Failure> {
        self.tests
    }
}

/// The tests with what they printed, for the end of a log.
pub(super) fn told(failures: &[Failure]) -> String {
    let told = failures
        .iter()
        .map(|test| format!("failed: {}\n{}", test.name, test.printed.join("\n")));
    told.collect::<Vec<_>>().join("\n")
}

/// What the closing lines of all test programs add up to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Tests that passed, but said that something they need is missing on this machine.
    skipped: usize,
    /// Test programs that were started and have not told a result.
    without_result: usize,
}

impl Counts {
    pub(super) fn read(&mut self, line: &str) {
        if line.starts_with("SKIPPED") {
            self.skipped += 1;
        }
        if line.starts_with("     Running ") {
            self.without_result += 1;
        }
        let Some(results) = line.strip_prefix("test result: ") else {
            return;
        };
        // The tests in documentation are started without such a line.
        self.without_result = self.without_result.saturating_sub(1);
        for part in results.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(count), Some(kind)) = (words.next(), words.next()) else {
                continue;
            };
            let count = count.parse().unwrap_or(0);
            match kind {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }

    /// The results of both.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
            skipped: self.skipped + other.skipped,
            without_result: self.without_result + other.without_result,
        }
    }

    /// Whether at least `least` tests passed, none failed, and no program ended before it had told
    /// a result.
    pub(super) fn all_passed(&self, least: usize) -> bool {
        self.passed >= least && self.failed == 0 && self.without_result == 0
    }

    /// Whether every program has told its result and these are the tests that failed.
    pub(super) fn failed_are(&self, failures: &[Failure]) -> bool {
        self.failed == failures.len() && self.without_result == 0
    }

    /// With these counted as passed, once they have passed.
    pub(super) fn with_passed(mut self, failures: &[Failure]) -> Self {
        self.failed -= failures.len().min(self.failed);
        self.passed += failures.len();
        self
    }

    pub(super) fn verdict(&self) -> Result<String, String> {
        let Self {
            passed,
            failed,
            ignored,
            skipped,
            ..
        } = self;
        let note = format!(
            "{passed} passed, {failed} failed, {ignored} ignored, {skipped} skipped with a reason"
        );
        // Nothing ran: the output changed its form, or the build failed.
        if passed + failed == 0 {
            Err("no test ran".to_owned())
        } else {
            Ok(note)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, Failures, Filter, LINES, told};

    fn counts(lines: &[&str]) -> Counts {
        let mut counts = Counts::default();
        for line in lines {
            counts.read(line);
        }
        counts
    }

    #[test]
    fn results_of_all_test_programs_are_added() {
        let counts = counts(&[
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in 0.01s",
            "SKIPPED: no plugin found",
            "test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out",
        ]);
        let expected = Counts {
            passed: 4,
            failed: 2,
            ignored: 1,
            skipped: 1,
            without_result: 0,
        };
        assert_eq!(counts, expected);
        let note = "4 passed, 2 failed, 1 ignored, 1 skipped with a reason";
        assert_eq!(counts.verdict(), Ok(note.to_owned()));
    }

    #[test]
    fn of_what_passed_tests_print_only_the_skipped_is_shown() {
        let mut filter = Filter::default();
        let lines = [
            "test a ... ok",
            "successes:",
            "---- a stdout ----",
            "a detail",
            "SKIPPED: no plugin found",
            "successes:",
            "    a",
            "failures:",
            "---- b stdout ----",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored",
            "running 2 tests",
        ];
        let shown: Vec<_> = lines
            .into_iter()
            .filter(|line| filter.shows(line))
            .collect();
        let expected = [0, 4, 7, 8, 9, 10].map(|index| lines[index]);
        assert_eq!(shown, expected);
    }

    #[test]
    fn failed_tests_are_collected_with_their_last_lines() {
        let mut failures = Failures::default();
        let many: Vec<String> = (0..LINES + 5).map(|line| format!("line {line}")).collect();
        let head = ["successes:", "---- a stdout ----", "of a", "failures:"];
        let second = [
            "---- c::d stdout ----",
            "panicked",
            "stack backtrace:",
            "   0: a",
        ];
        let tail = [
            "failures:",
            "    b",
            "    c::d",
            "test result: FAILED. 1 passed; 2 failed",
        ];
        for line in head.into_iter().chain(["---- b stdout ----"]) {
            failures.read(line);
        }
        for line in many.iter().map(String::as_str).chain(second).chain(tail) {
            failures.read(line);
        }
        // The next program, of which nothing failed.
        failures.read("---- e stdout ----");
        let tests = failures.into_tests();
        let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["b", "c::d"]);
        assert_eq!(tests[0].printed, many[5..]);
        assert!(told(&tests).ends_with("failed: c::d\npanicked"));
    }

    #[test]
    fn a_program_without_a_result_is_no_failed_test_that_can_run_again() {
        let mut ended = vec!["     Running tests/all/main.rs (target/debug/deps/all-1)"];
        assert!(!counts(&ended).failed_are(&[]));
        ended.push("test result: ok. 2 passed; 0 failed; 0 ignored");
        assert!(counts(&ended).failed_are(&[]));
        assert!(counts(&ended).all_passed(2));
        assert!(!counts(&ended).all_passed(3), "a name that no test has");
    }

    #[test]
    fn no_test_at_all_is_a_failure() {
        assert_eq!(Counts::default().verdict(), Err("no test ran".to_owned()));
    }

    #[test]
    fn results_of_lanes_are_added() {
        let (mut one, mut other) = (Counts::default(), Counts::default());
        one.read("test result: ok. 3 passed; 1 failed; 1 ignored; 0 measured");
        other.read("test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured");
        other.read("SKIPPED: no GPU");
        let note = "7 passed, 1 failed, 1 ignored, 1 skipped with a reason";
        assert_eq!(one.and(&other).verdict(), Ok(note.to_owned()));
    }
}
