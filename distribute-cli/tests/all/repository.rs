//! The files by which others build, run and show the project: they parse, and name what is there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&text(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// All documents of a file, as a list.
fn documents(file: &str) -> Value {
    let found = serde_saphyr::from_multiple(&text(file));
    Value::Array(found.unwrap_or_else(|error| panic!("{file}: {error}")))
}

/// The instructions of a Dockerfile: the word, and what follows it on its lines.
fn instructions(file: &str) -> Vec<(String, String)> {
    let text = text(file);
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let known = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "ENTRYPOINT",
        "CMD",
        "ENV",
        "ARG",
    ];
    lines
        .map(|line| {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            assert!(
                known.contains(&word),
                "{file}: unknown instruction `{line}`"
            );
            (word.to_string(), rest.trim().to_string())
        })
        .collect()
}

fn only<'a>(all: &'a [(String, String)], word: &str) -> &'a str {
    let found: Vec<_> = all.iter().filter(|(name, _)| name == word).collect();
    assert_eq!(found.len(), 1, "{word}: {all:?}");
    &found[0].1
}

/// All values of a key, however deep.
fn values<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                if name == key {
                    found.push(value);
                }
                values(value, key, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| values(item, key, found)),
        _ => {}
    }
}

#[test]
fn the_image_is_what_the_kubernetes_files_start() {
    let all = instructions("deploy/Dockerfile");
    let last = all.iter().rposition(|(word, _)| word == "FROM").unwrap();
    let (build, image) = all.split_at(last);
    // The toolchain is the one that the workspace asks for.
    let manifest: toml::Table = text("Cargo.toml").parse().unwrap();
    let package = &manifest["workspace"]["package"];
    let rust = package["rust-version"].as_str().unwrap();
    let from = only(build, "FROM");
    assert!(
        from.starts_with(&format!("rust:{rust}-")) && from.ends_with(" AS build"),
        "{from}"
    );
    assert!(
        build
            .iter()
            .any(|(_, rest)| rest.contains("cargo build --locked --release"))
    );
    // Both images are of one release of Debian, whose C library the program needs.
    let release = |from: &str| from.split([':', '-', ' ']).any(|word| word == "trixie");
    assert!(release(from) && release(only(image, "FROM")), "{all:?}");
    let copied: Vec<&str> = only(image, "COPY").split_whitespace().collect();
    assert_eq!(copied[0], "--from=build");
    let source = copied[1].strip_prefix(only(build, "WORKDIR")).unwrap();
    assert_eq!(source, "/target/release/distribute-cli");
    let command = copied[2]
        .strip_prefix("/usr/local/bin/")
        .expect("in the PATH");
    assert_eq!(only(image, "ENTRYPOINT"), format!("[\"{command}\"]"));
    let version = package["version"].as_str().unwrap();
    let tag = format!("registry.example.com/distribute-cli:{version}");
    assert!(text("deploy/Dockerfile").contains(&format!("--tag {tag} .")));
    let user = only(image, "USER").split(':').next().unwrap();
    for file in [
        "deploy/jobset.yaml",
        "deploy/tfjob.yaml",
        "deploy/trainer-v2.yaml",
    ] {
        let yaml = documents(file);
        let found = |key: &str| {
            let mut found = Vec::new();
            values(&yaml, key, &mut found);
            assert!(!found.is_empty(), "{file}: {key}");
            found.into_iter().cloned().collect::<Vec<Value>>()
        };
        assert!(found("image").iter().all(|image| *image == *tag), "{file}");
        let programs = found("command")
            .into_iter()
            .all(|it| it == serde_json::json!([command]));
        assert!(programs, "{file}");
        let number: u64 = user.parse().unwrap();
        assert!(
            found("runAsUser").iter().all(|user| *user == number),
            "{file}"
        );
    }
    assert!(
        text(".dockerignore")
            .lines()
            .any(|line| line == "**/target")
    );
}

#[test]
fn workflows_run_what_is_in_the_repository() {
    let mut commands = Vec::new();
    for entry in fs::read_dir(root().join(".github/workflows")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let workflow = yaml(&format!(".github/workflows/{name}"));
        assert_eq!(workflow["permissions"]["contents"], "read", "{name}");
        for (job, steps) in workflow["jobs"].as_object().unwrap() {
            assert!(
                steps["timeout-minutes"].is_u64(),
                "{name}: {job} could run for ever"
            );
            for step in steps["steps"].as_array().unwrap() {
                let run = step["run"].as_str().map(str::to_string);
                assert!(
                    run.is_some() || step["uses"].is_string(),
                    "{name}: {job}: {step}"
                );
                commands.extend(run);
            }
        }
    }
    for script in commands
        .iter()
        .filter_map(|it| it.split_whitespace().next())
    {
        if script.contains('/') {
            let mode = fs::metadata(root().join(script))
                .unwrap()
                .permissions()
                .mode();
            assert_ne!(mode & 0o100, 0, "{script} cannot be executed");
        }
    }
    for needed in [
        ".ci/run",
        "scripts/fuzz 300",
        "cargo xtask check --only deny",
    ] {
        assert!(
            commands.iter().any(|it| it == needed),
            "{needed}: {commands:?}"
        );
    }
}

#[test]
fn issue_forms_and_the_citation_are_complete() {
    for form in ["bug.yml", "proposal.yml"] {
        let form_text = yaml(&format!(".github/ISSUE_TEMPLATE/{form}"));
        assert!(
            form_text["name"].is_string() && form_text["description"].is_string(),
            "{form}"
        );
        for field in form_text["body"].as_array().unwrap() {
            assert!(field["attributes"]["label"].is_string(), "{form}: {field}");
        }
    }
    let citation = yaml("CITATION.cff");
    let manifest: toml::Table = text("Cargo.toml").parse().unwrap();
    let package = &manifest["workspace"]["package"];
    assert_eq!(citation["version"], package["version"].as_str().unwrap());
    for key in ["cff-version", "message", "title", "authors", "license"] {
        assert!(!citation[key].is_null(), "{key}");
    }
}
