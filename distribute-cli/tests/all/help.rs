//! The command line is frozen: a change of any flag shows up here.

use rstest::rstest;

use crate::common;

#[rstest]
#[case("")]
#[case("train")]
#[case("launch")]
#[case("evaluate")]
#[case("predict")]
#[case("export")]
#[case("doctor")]
#[case("conformance")]
#[case("bench")]
#[case("bench train")]
#[case("bench all-reduce")]
#[case("bench parameter-server")]
#[case("bench tpu")]
#[case("blame")]
#[case("certs")]
#[case("new")]
#[case("completions")]
#[case("man")]
#[case("same-bits")]
fn help_is_frozen(#[case] command: &str) {
    let folder = tempfile::tempdir().unwrap();
    let help = common::succeed(folder.path(), &format!("{command} --help"));
    let widest = help.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{widest:?}");
    let name = match command {
        "" => "all".to_string(),
        command => command.replace(' ', "_"),
    };
    insta::assert_snapshot!(format!("help_{name}"), of_default_features(help));
}

/// Without the paragraph of the one flag that takes a feature.
fn of_default_features(help: String) -> String {
    if cfg!(not(feature = "otlp")) {
        return help;
    }
    let paragraphs = help.split("\n\n");
    let kept = paragraphs.filter(|it| !it.trim_start().starts_with("--otlp-endpoint"));
    kept.collect::<Vec<_>>().join("\n\n")
}
