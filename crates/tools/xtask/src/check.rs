//! Runs the steps one after the other and says how long each took.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cargo::{PROGRAMS, cargo, finish, reading_everything};
use crate::tree::Workspace;
use crate::{
    api, book, commits, deny, edges, features, miri, modules, package, suite, tidy, transports,
};

/// Which steps to run.
#[derive(Debug, PartialEq, Eq)]
pub enum Selection {
    All,
    AllButTests,
    Tests,
    Only(&'static str),
}

impl Selection {
    /// The one step with this name.
    pub fn only(name: &str) -> Result<Self, String> {
        let step = STEPS.iter().find(|step| step.name == name);
        step.map(|step| Self::Only(step.name)).ok_or_else(|| {
            let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            format!("`--only` takes one of {}", names.join(", "))
        })
    }

    fn includes(&self, step: &Step) -> bool {
        match self {
            Self::All => true,
            Self::AllButTests => !is_test(step),
            Self::Tests => is_test(step),
            Self::Only(name) => step.name == *name,
        }
    }
}

fn is_test(step: &Step) -> bool {
    matches!(step.name, "models" | "miri" | "test")
}

struct Step {
    name: &'static str,
    /// What to do when it fails.
    advice: &'static str,
    /// Returns what the summary says about a step that passed, or why it failed.
    run: fn(&Workspace) -> Result<String, String>,
}

const STEPS: [Step; 15] = [
    Step {
        name: "tidy",
        advice: "fix the places above; crates/tools/xtask/README.md explains each rule",
        run: tidy_step,
    },
    Step {
        name: "commits",
        advice: "say what the commit does, shorter or as an order (`git commit --amend`)",
        run: |it| commits::run(&it.root),
    },
    Step {
        name: "book",
        advice: "change docs/SUMMARY.md or the pages above; crates/tools/xtask/README.md says how",
        run: book::run,
    },
    Step {
        name: "edges",
        advice: "change the manifests above; ARCHITECTURE.md says who may use whom",
        run: edges_step,
    },
    Step {
        name: "modules",
        advice: "break the circles above; `cargo xtask modules CRATE` shows who imports whom",
        run: modules_step,
    },
    Step {
        name: "features",
        advice: "add the missing features to Cargo.toml and to crates/base/distribute-features",
        run: features::run,
    },
    Step {
        name: "deny",
        advice: "do without the dependency, or say in deny.toml why it may be there",
        run: |it| deny::run(&it.root),
    },
    Step {
        name: "package",
        advice: "add what is missing to the manifests; `Cargo.toml` has what all share",
        run: package::run,
    },
    Step {
        name: "fmt",
        advice: "run `cargo fmt --all`",
        run: |it| cargo(&it.root, "fmt --all --check"),
    },
    Step {
        name: "clippy",
        advice: "fix the warnings above; `cargo xtask check --only clippy` shows them again",
        run: clippy_step,
    },
    Step {
        name: "transports",
        advice: "put it behind the feature of the transport that needs it",
        run: |it| transports::run(&it.root),
    },
    Step {
        name: "doc",
        advice: "fix the warnings above; if an interface has changed, `cargo xtask api` writes it \
                 anew, CHANGELOG.md says what changed for users, and the next version is a \
                 compatible one only if nothing went",
        run: api::check,
    },
    Step {
        name: "models",
        advice: "the model that fails is named above, with the order of its threads when it runs \
                 with `LOOM_LOG=trace LOOM_LOCATION=1`",
        run: |it| {
            // The program, which has no library, brings the features that the step `test` has, so
            // that less is built twice.
            let models = "test -p distribute-collectives -p distribute-cli --lib models --features \
                          distribute-collectives/loom,distribute-cli/nccl,distribute-cli/otlp";
            cargo(&it.root, models)
        },
    },
    Step {
        name: "miri",
        advice: "Miri names the access that is undefined behaviour above",
        run: |it| miri::run(&it.root),
    },
    Step {
        name: "test",
        advice: "fix the failure above; `cargo test -p CRATE NAME` runs one test",
        run: |it| suite::run(&it.root),
    },
];

/// Runs the selected steps, stops at the first that fails, and prints a summary.
pub fn run(root: &Path, selection: &Selection) -> ExitCode {
    let steps: Vec<&Step> = STEPS
        .iter()
        .filter(|step| selection.includes(step))
        .collect();
    let workspace = Workspace::at(root);
    let mut summary = Vec::new();
    let mut failed = None;
    for step in &steps {
        say!("check: {} ...", step.name);
        let start = Instant::now();
        let result = (step.run)(&workspace);
        let line = summary_line(step.name, &result, start.elapsed());
        say!("check: {line}");
        summary.push(line);
        if let Err(reason) = result {
            say!("{reason}");
            failed = Some(step);
            break;
        }
    }
    say!("\ncheck: summary");
    for line in &summary {
        say!("  {line}");
    }
    for step in &steps[summary.len()..] {
        say!("  {:<10} not run", step.name);
    }
    match failed {
        None => {
            say!("check: passed");
            ExitCode::SUCCESS
        }
        Some(step) => {
            say!("check: FAILED in `{}`: {}", step.name, step.advice);
            ExitCode::FAILURE
        }
    }
}

fn summary_line(name: &str, result: &Result<String, String>, elapsed: Duration) -> String {
    let (verdict, note) = match result {
        Ok(note) => ("ok", note.as_str()),
        Err(_) => ("FAILED", ""),
    };
    let line = format!(
        "{name:<10} {verdict:<6} {:7.1} s  {note}",
        elapsed.as_secs_f64()
    );
    line.trim_end().to_owned()
}

fn tidy_step(workspace: &Workspace) -> Result<String, String> {
    let tree = workspace.tree()?;
    let problems = tidy::problems(tree);
    let problems = problems.iter().map(ToString::to_string).collect();
    verdict(problems, tree.paths.len(), "files")
}

fn edges_step(workspace: &Workspace) -> Result<String, String> {
    let tree = workspace.tree()?;
    verdict(edges::problems(tree), tree.members.len(), "crates")
}

/// All there is, and what the program is without its default features. The step `test` compiles the
/// README's first command as it is.
fn clippy_step(workspace: &Workspace) -> Result<String, String> {
    for what in [
        &format!("--workspace --all-targets {PROGRAMS}"),
        "-p distribute-cli --no-default-features",
    ] {
        let command = format!("clippy {what} -- -D warnings");
        finish(&mut reading_everything(&workspace.root, &command))?;
    }
    Ok(String::new())
}

fn modules_step(workspace: &Workspace) -> Result<String, String> {
    let tree = workspace.tree()?;
    verdict(modules::problems(tree), tree.members.len(), "crates")
}

fn verdict(problems: Vec<String>, count: usize, what: &str) -> Result<String, String> {
    if problems.is_empty() {
        return Ok(format!("{count} {what}"));
    }
    Err(format!(
        "{}\n{} problem(s)",
        problems.join("\n"),
        problems.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::{STEPS, Selection, summary_line, verdict};
    use std::time::Duration;

    fn names(selection: &Selection) -> Vec<&'static str> {
        STEPS
            .iter()
            .filter(|step| selection.includes(step))
            .map(|step| step.name)
            .collect()
    }

    #[test]
    fn steps_are_selected_in_their_order() {
        let all = [
            "tidy",
            "commits",
            "book",
            "edges",
            "modules",
            "features",
            "deny",
            "package",
            "fmt",
            "clippy",
            "transports",
            "doc",
            "models",
            "miri",
            "test",
        ];
        assert_eq!(names(&Selection::All), all);
        assert_eq!(names(&Selection::AllButTests), all[..12]);
        assert_eq!(names(&Selection::Tests), all[12..]);
        assert_eq!(names(&Selection::only("doc").expect("a step")), ["doc"]);
    }

    #[test]
    fn a_summary_line_has_a_name_a_verdict_and_seconds() {
        let elapsed = Duration::from_millis(1260);
        assert_eq!(
            summary_line("fmt", &Ok(String::new()), elapsed),
            "fmt        ok         1.3 s"
        );
        let failed = Err("many lines".to_owned());
        assert_eq!(
            summary_line("clippy", &failed, elapsed),
            "clippy     FAILED     1.3 s"
        );
    }

    #[test]
    fn problems_are_listed_and_counted() {
        assert_eq!(verdict(Vec::new(), 7, "files"), Ok("7 files".to_owned()));
        let problems = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(
            verdict(problems, 7, "files"),
            Err("a\nb\n2 problem(s)".to_owned())
        );
    }
}
